#include "scip/object/unix_diag.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/unix_diag.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/sock_diag.h"
#include "scip/object/common.h"

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

static int take_socket(void *arg, const struct nlmsghdr *header)
{
	struct unix_diag_table *table = arg;
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

static int compare_answers(const void *a, const void *b)
{
	const struct unix_diag *one = a, *other = b;

	return one->ino < other->ino ? -1 : one->ino > other->ino;
}

int unix_diag_read(struct unix_diag_table *out, struct err *err)
{
	const struct unix_diag_req request = {.sdiag_family = AF_UNIX,
					      .udiag_states = ~0u,
					      .udiag_show = UDIAG_SHOW_VFS | UDIAG_SHOW_PEER |
							    UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN};
	int r;

	*out = (struct unix_diag_table){.n = 0};
	r = sock_diag_query(&request, sizeof(request), NLM_F_DUMP, take_socket, out);
	if (r < 0) {
		unix_diag_free(out);
		return err_code(err, r, "read sock_diag's answer");
	}
	if (out->n)
		bytes_sort(out->v, out->n, sizeof(*out->v), compare_answers);
	return 0;
}

const struct unix_diag *unix_diag_find(const struct unix_diag_table *table, uint64_t ino)
{
	struct unix_diag key = {.ino = (uint32_t)ino};

	return table->n ? bsearch(&key, table->v, table->n, sizeof(*table->v), compare_answers) : NULL;
}

void unix_diag_free(struct unix_diag_table *table)
{
	for (size_t i = 0; i < table->n; i++)
		free(table->v[i].icons);
	free(table->v);
	*table = (struct unix_diag_table){.n = 0};
}
