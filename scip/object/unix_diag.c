#include "scip/object/unix_diag.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "scip/object/common.h"

#define REPLY_MAX (256u << 10)

static int ask(int sock, struct err *err)
{
	struct {
		struct nlmsghdr header;
		struct unix_diag_req request;
	} message = {
		.header = {.nlmsg_len = sizeof(message),
			   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.request = {.sdiag_family = AF_UNIX,
			    .udiag_states = ~0u,
			    .udiag_show =
				    UDIAG_SHOW_VFS | UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN},
	};

	return send(sock, &message, sizeof(message), 0) < 0 ? err_sys(err, "ask sock_diag") : 0;
}

static int take_attribute(struct unix_diag *entry, const struct rtattr *attribute)
{
	const void *data = RTA_DATA(attribute);
	size_t len = RTA_PAYLOAD(attribute);
	struct unix_diag_rqlen rqlen;
	struct unix_diag_vfs vfs;

	if (attribute->rta_type == UNIX_DIAG_PEER && len >= sizeof(entry->peer)) {
		memcpy(&entry->peer, data, sizeof(entry->peer));
		entry->has_peer = true;
	} else if (attribute->rta_type == UNIX_DIAG_SHUTDOWN && len >= 1) {
		memcpy(&entry->shutdown, data, 1);
	} else if (attribute->rta_type == UNIX_DIAG_RQLEN && len >= sizeof(rqlen)) {
		memcpy(&rqlen, data, sizeof(rqlen));
		entry->backlog = rqlen.udiag_wqueue;
	} else if (attribute->rta_type == UNIX_DIAG_VFS && len >= sizeof(vfs)) {
		memcpy(&vfs, data, sizeof(vfs));
		entry->vfs_ino = vfs.udiag_vfs_ino;
	} else if (attribute->rta_type == UNIX_DIAG_ICONS && len) {
		entry->icons = malloc(len);
		if (!entry->icons)
			return -ENOMEM;
		memcpy(entry->icons, data, len);
		entry->nicons = len / sizeof(uint32_t);
	}
	return 0;
}

static int take_message(struct unix_diag_table *table, const struct nlmsghdr *header)
{
	const struct unix_diag_msg *message = NLMSG_DATA(header);
	struct unix_diag entry = {.ino = message->udiag_ino, .state = message->udiag_state};
	const struct rtattr *attribute = (const void *)(message + 1);
	int left = (int)(header->nlmsg_len - NLMSG_LENGTH(sizeof(*message)));
	int r = 0;

	for (; RTA_OK(attribute, left) && r == 0; attribute = RTA_NEXT(attribute, left))
		r = take_attribute(&entry, attribute);
	if (r == 0)
		r = object_append(table->v, table->n, entry);
	if (r < 0)
		free(entry.icons);
	return r;
}

static int compare(const void *a, const void *b)
{
	const struct unix_diag *one = a, *other = b;

	return one->ino < other->ino ? -1 : one->ino > other->ino;
}

/* 1 while there is more, 0 at the end. */
static int take_reply(struct unix_diag_table *table, const char *buf, size_t len)
{
	const struct nlmsghdr *header = (const void *)buf;

	for (; NLMSG_OK(header, len); header = NLMSG_NEXT(header, len)) {
		int r;

		if (header->nlmsg_type == NLMSG_DONE)
			return 0;
		if (header->nlmsg_type == NLMSG_ERROR)
			return ((const struct nlmsgerr *)NLMSG_DATA(header))->error ?: -EPROTO;
		r = take_message(table, header);
		if (r < 0)
			return r;
	}
	return 1;
}

int unix_diag_read(struct unix_diag_table *out, struct err *err)
{
	auto_close int sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	auto_free char *buf = malloc(REPLY_MAX);
	int r;

	*out = (struct unix_diag_table){.n = 0};
	if (!buf)
		return object_no_memory(err);
	if (sock < 0)
		return err_sys(err, "open sock_diag");
	r = ask(sock, err);
	if (r < 0)
		return r;
	do {
		ssize_t n = recv(sock, buf, REPLY_MAX, 0);

		if (n < 0 && errno == EINTR)
			r = 1;
		else
			r = n < 0 ? -errno : take_reply(out, buf, (size_t)n);
	} while (r == 1);
	if (r < 0) {
		unix_diag_free(out);
		return err_code(err, r, "read sock_diag's answer");
	}
	if (out->n)
		qsort(out->v, out->n, sizeof(*out->v), compare);
	return 0;
}

const struct unix_diag *unix_diag_find(const struct unix_diag_table *table, uint64_t ino)
{
	struct unix_diag key = {.ino = (uint32_t)ino};

	return table->n ? bsearch(&key, table->v, table->n, sizeof(*table->v), compare) : NULL;
}

void unix_diag_free(struct unix_diag_table *table)
{
	for (size_t i = 0; i < table->n; i++)
		free(table->v[i].icons);
	free(table->v);
	*table = (struct unix_diag_table){.n = 0};
}
