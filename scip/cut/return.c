#include "scip/cut/return.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "image/store.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/cut/cut.h"
#include "scip/migrate/swap/end.h"

/* ---- which cut, and who has what of it ---- */

/* Asks every host that is up what it has; a host without an answer has nothing. */
static void look(struct lead *lead)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;

	request.operation = PBEAM__CUT_REQUEST__OPERATION__LOOK;
	request.name = lead->name;
	for (size_t i = 0; i < lead->hosts->n_hosts; i++) {
		const char *host = lead->hosts->hosts[i]->name;
		struct err err = ERR_INIT;
		int channel = lead_host_is_up(lead, host) ? lead_store(lead, host, &err) : -1;
		Pbeam__CutReply *reply = channel < 0 ? NULL : cut_ask(channel, &request, &err);

		if (!reply) { /* it may have been lost a moment ago */
			lead->hosts->hosts[i]->state = PBEAM__HOST_INFO__STATE__LOST;
			log_warn("host %s: %s", host, err.text);
		}
		for (size_t k = 0; reply && k < lead->nknown; k++)
			if (lead->known[k].channel == channel) {
				message_free(lead->known[k].has);
				lead->known[k].has = reply;
			}
	}
}

static const Pbeam__CutImage *image_of(const struct lead_host *host, uint32_t number)
{
	for (size_t i = 0; host->has && i < host->has->n_images; i++)
		if (host->has->images[i]->number == number)
			return host->has->images[i];
	return NULL;
}

static struct lead_host *find_host(struct lead *lead, const char *name)
{
	for (size_t i = 0; i < lead->nknown; i++)
		if (!strcmp(lead->known[i].name, name))
			return &lead->known[i];
	return NULL;
}

/* A host with that image (0: the manifest); this one first. */
static struct lead_host *who_has(struct lead *lead, uint32_t part)
{
	struct lead_host *found = NULL;

	for (size_t i = 0; i < lead->nknown; i++) {
		const Pbeam__CutImage *image = image_of(&lead->known[i], lead->number);
		bool has = image && part == 0 && image->whole;

		for (size_t k = 0; image && k < image->n_parts && part; k++)
			has = has || image->parts[k] == part;
		if (has && (!found || !strcmp(lead->known[i].name, lead->own)))
			found = &lead->known[i];
	}
	return found;
}

static int choose(struct lead *lead, uint32_t wish, struct err *err)
{
	uint32_t newest = 0;

	for (size_t i = 0; i < lead->nknown; i++)
		for (size_t k = 0; lead->known[i].has && k < lead->known[i].has->n_images; k++) {
			const Pbeam__CutImage *image = lead->known[i].has->images[k];

			if (image->whole && image->number > newest && (!wish || image->number == wish))
				newest = image->number;
		}
	lead->number = newest;
	if (newest)
		return 0;
	return wish ? err_set(err, -ENOENT, "there is no checkpoint %u of it on any host", wish)
		    : err_set(err, -ENOENT,
			      "there is no checkpoint of it on any host; make one with `pbeamctl "
			      "checkpoint`");
}

/* The image here, fetched from another host if need be. */
static int fetch(struct lead *lead, uint32_t part, char path[PATH_MAX], struct err *err)
{
	struct lead_host *host = who_has(lead, part);
	int r = store_image_path(lead->name, lead->number, part, path, err);

	if (r < 0)
		return r;
	if (!host)
		return err_set(err, -ENOENT, "no host that is up has part %u of checkpoint %u", part,
			       lead->number);
	if (!strcmp(host->name, lead->own))
		return 0;
	r = store_take(lead->name, lead->uuid, lead->number, err);
	if (r == 0)
		r = cut_get_image(host->channel, lead->name, lead->number, part, err);
	return r < 0 ? err_wrap(err, r, "host %s", host->name) : 0;
}

static int open_manifest(const char *path, struct image_reader **out, struct err *err)
{
	int r = image_reader_open(out, path, err);

	if (r == 0)
		r = image_reader_verify(*out, err);
	if (r == 0 && !image_reader_manifest(*out)->cut)
		r = err_set(err, -EINVAL, "%s is no cut over several hosts", path);
	return r;
}

int return_find(struct lead *lead, const Pbeam__RollbackRequest *wish, char path[PATH_MAX],
		struct image_reader **manifest, struct err *err)
{
	const Pbeam__Manifest *of;
	int r = 0;

	snprintf(lead->name, sizeof(lead->name), "%s", wish->target->name);
	r = cut_check_name(lead->name, err);
	if (r == 0) {
		look(lead);
		r = choose(lead, wish->number, err);
	}
	if (r == 0)
		r = fetch(lead, 0, path, err);
	if (r == 0)
		r = open_manifest(path, manifest, err);
	if (r < 0)
		return r;
	of = image_reader_manifest(*manifest);
	if (!of->cut->n_parts)
		return err_set(err, -EBADMSG, "%s has no parts", path);
	snprintf(lead->uuid, sizeof(lead->uuid), "%s", of->job ? of->job->uuid : "");
	return 0;
}

int return_bring_image(struct lead *lead, const struct returning *returning, struct err *err)
{
	uint32_t part = returning->saved->index;
	struct lead_host *to = find_host(lead, returning->host);
	const Pbeam__CutImage *has = to ? image_of(to, lead->number) : NULL;
	char path[PATH_MAX];
	int r;

	for (size_t i = 0; has && i < has->n_parts; i++)
		if (has->parts[i] == part)
			return 0;
	if (!to)
		return err_set(err, -EHOSTUNREACH, "host %s cannot be reached", returning->host);
	r = fetch(lead, part, path, err);
	if (r == 0 && strcmp(to->name, lead->own) != 0)
		r = cut_put_image(to->channel, lead->name, lead->uuid, lead->number, part, err);
	if (r == 0 && strcmp(to->name, lead->own) != 0 &&
	    cut_put_image(to->channel, lead->name, lead->uuid, lead->number, 0, err) < 0) {
		log_info("host %s: %s", to->name, err->text); /* it can do without */
		err_clear(err);
	}
	return r < 0 ? err_wrap(err, r, "bring the image of vpid %d to %s", returning->saved->vpid, to->name)
		     : 0;
}

/* ---- connections ---- */

static int host_address(const struct lead *lead, const char *host, ProtobufCBinaryData *out, struct err *err)
{
	for (size_t i = 0; i < lead->hosts->n_hosts; i++) {
		struct sockaddr_in v4 = {.sin_family = AF_INET};
		struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
		const char *text = lead->hosts->hosts[i]->address;

		if (strcmp(lead->hosts->hosts[i]->name, host) != 0)
			continue;
		if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
			return message_bytes(out, &v4, sizeof(v4));
		if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1)
			return message_bytes(out, &v6, sizeof(v6));
	}
	return err_set(err, -EHOSTUNREACH, "host %s has no address that others can connect to", host);
}

static bool has_connection(const Pbeam__CutPart *part, uint64_t id)
{
	for (size_t i = 0; i < part->n_connections; i++)
		if (part->connections[i] == id)
			return true;
	return false;
}

/* The part that waits for a connection that part `caller` has: the one before it that has it too. */
static const struct returning *other_of(const struct returning *v, size_t n, size_t own, uint64_t id)
{
	for (size_t i = 0; i < n; i++)
		if (i != own && has_connection(v[i].saved, id))
			return &v[i];
	return NULL;
}

/* The same for both ends, and for nobody else: from a secret of this rollback. */
static void make_cookie(const uint8_t secret[SWAP_COOKIE_SIZE], uint64_t id, uint8_t cookie[SWAP_COOKIE_SIZE])
{
	memcpy(cookie, secret, SWAP_COOKIE_SIZE);
	for (size_t i = 0; i < sizeof(id); i++)
		cookie[i] ^= (uint8_t)(id >> (8 * i));
}

static int add_link(const struct lead *lead, const struct returning *v, size_t n, size_t own, uint64_t id,
		    const uint8_t secret[SWAP_COOKIE_SIZE], Pbeam__MigrateState *state, struct err *err)
{
	const struct returning *other = other_of(v, n, own, id);
	Pbeam__CutLink *link = message_add(state, links, pbeam__cut_link__descriptor);
	uint8_t cookie[SWAP_COOKIE_SIZE];

	if (!other)
		return err_set(err, -EBADMSG, "connection %llu has one end only", (unsigned long long)id);
	make_cookie(secret, id, cookie);
	if (!link || message_bytes(&link->cookie, cookie, SWAP_COOKIE_SIZE) < 0)
		return err_code(err, -ENOMEM, "connections");
	link->id = id;
	link->calls = other < &v[own];
	link->port4 = other->ready->port4;
	link->port6 = other->ready->port6;
	return host_address(lead, other->host, &link->address, err);
}

/* ---- bridges ---- */

static bool has_line(Pbeam__CutLineName *const *lines, size_t n, const Pbeam__CutLineName *name)
{
	for (size_t i = 0; i < n; i++)
		if (lines[i]->id == name->id && message_same_bytes(&lines[i]->cookie, &name->cookie))
			return true;
	return false;
}

/* The new cookie of the bridge that has the anchors in part `at`: from a secret of this rollback. */
static int add_line(const struct returning *v, size_t at, const Pbeam__CutLineName *name,
		    const uint8_t secret[SWAP_COOKIE_SIZE], Pbeam__MigrateState *state, struct err *err)
{
	Pbeam__CutLine *line = message_add(state, lines, pbeam__cut_line__descriptor);
	uint8_t cookie[SWAP_COOKIE_SIZE];

	if (name->cookie.len != sizeof(cookie))
		return err_set(err, -EBADMSG, "the manifest of the cut is malformed");
	make_cookie(secret, at + 1, cookie);
	for (size_t i = 0; i < sizeof(cookie); i++)
		cookie[i] ^= name->cookie.data[i];
	if (!line || message_bytes(&line->saved, name->cookie.data, name->cookie.len) < 0 ||
	    message_bytes(&line->cookie, cookie, sizeof(cookie)) < 0 ||
	    message_string(&line->host, v[at].host) < 0)
		return err_code(err, -ENOMEM, "bridges");
	line->id = name->id;
	return 0;
}

static int add_lines(const struct returning *v, size_t n, size_t own, const uint8_t secret[SWAP_COOKIE_SIZE],
		     Pbeam__MigrateState *state, struct err *err)
{
	const Pbeam__CutPart *part = v[own].saved;
	int r = 0;

	for (size_t i = 0; i < part->n_anchors && r == 0; i++)
		r = add_line(v, own, part->anchors[i], secret, state, err);
	for (size_t i = 0; i < part->n_floats && r == 0; i++) {
		size_t at = 0;

		while (at < n && !has_line(v[at].saved->anchors, v[at].saved->n_anchors, part->floats[i]))
			at++;
		r = at < n ? add_line(v, at, part->floats[i], secret, state, err)
			   : err_set(err, -EBADMSG, "a bridge has one end only");
	}
	return r;
}

/* ---- processes and their stubs ---- */

static bool lists(const int32_t *list, size_t n, int32_t vpid)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == vpid)
			return true;
	return false;
}

const struct returning *return_kin(const struct returning *v, size_t n, const struct returning *own,
				   int32_t vpid, bool stubs)
{
	for (size_t i = 0; i < n; i++) {
		const Pbeam__CutPart *part = v[i].saved;

		if (&v[i] != own && !strcmp(part->job->uuid, own->saved->job->uuid) &&
		    (stubs ? lists(part->stubs, part->n_stubs, vpid)
			   : lists(part->guests, part->n_guests, vpid)))
			return &v[i];
	}
	return NULL;
}

int return_connect(const struct lead *lead, const struct returning *v, size_t n, struct err *err)
{
	uint8_t secret[SWAP_COOKIE_SIZE];
	int r = 0;

	if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
		return err_sys(err, "make a cookie");
	for (size_t i = 0; i < n && r == 0; i++) {
		Pbeam__MigrateState *state = message_new(&pbeam__migrate_state__descriptor);

		r = state ? 0 : err_code(err, -ENOMEM, "connections");
		for (size_t k = 0; r == 0 && k < v[i].saved->n_connections; k++)
			r = add_link(lead, v, n, i, v[i].saved->connections[k], secret, state, err);
		if (r == 0)
			r = add_lines(v, n, i, secret, state, err);
		if (r == 0)
			r = frame_send(v[i].channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE, &state->base,
				       NULL, 0, err);
		message_free(state);
	}
	return r;
}
