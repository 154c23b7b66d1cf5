#include "scip/rejoin/cut_ends.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/rejoin/cut_provider.h"

static int ends_add(struct cut_ends *ends, const struct object_source *of, const struct end_tcp *end,
		    Pbeam__CutReply *reply, struct err *err)
{
	struct cut_end new = {.end = *end};
	Pbeam__CutEnd *out = message_add(reply, ends, pbeam__cut_end__descriptor);

	new.end.ino = of->st.st_ino;
	if (!out || message_bytes(&out->own, &end->own.any, end->own.len) < 0 ||
	    message_bytes(&out->peer, &end->peer.any, end->peer.len) < 0 ||
	    object_append(ends->v, ends->n, new) < 0)
		return err_code(err, -ENOMEM, "list the connections");
	return 0;
}

int cut_ends_find(struct cut_ends *ends, struct object_dump *dump, Pbeam__CutReply *reply, struct err *err)
{
	const struct object_source *of;
	int r = 0;

	for (size_t i = 0; r == 0 && (of = object_dump_source(dump, i)) != NULL; i++) {
		struct end_tcp end;

		end_tcp_init(&end);
		if (end_tcp_is_external(dump, of, &end))
			r = ends_add(ends, of, &end, reply, err);
	}
	return r;
}

static int ends_take(struct cut_ends *ends, struct object_dump *dump, const Pbeam__CutRequest *request,
		     struct err *err)
{
	int r = 0;

	if (request->n_ends != ends->n)
		return err_set(err, -EPROTO, "the leader lists %zu connections, the part has %zu",
			       request->n_ends, ends->n);
	for (size_t i = 0; i < ends->n && r == 0; i++) {
		const struct object_source *of;
		int fd;

		ends->v[i].id = request->ends[i]->id;
		if (!ends->v[i].id)
			continue;
		of = object_dump_find_inode(dump, ends->v[i].end.ino, NULL);
		fd = of ? fcntl(of->local, F_DUPFD_CLOEXEC, 0) : -1;
		r = fd < 0 ? err_sys(err, "duplicate a connection") : end_tcp_take(&ends->v[i].end, fd, err);
	}
	return r;
}

int cut_ends_drain(struct cut_ends *ends, struct object_dump *dump, const Pbeam__CutRequest *request,
		   Pbeam__CutReply *reply, struct err *err)
{
	int r = ends->round ? 0 : ends_take(ends, dump, request, err);

	for (size_t i = 0; i < ends->n && r == 0; i++) {
		Pbeam__CutEnd *out = message_add(reply, ends, pbeam__cut_end__descriptor);
		struct end_tcp_level level = {0};

		if (!out)
			return err_code(err, -ENOMEM, "drain the connections");
		if (ends->v[i].id)
			level = end_tcp_drain(&ends->v[i].end, ends->round);
		out->waiting = level.waiting;
		out->queued = level.queued;
		out->room = level.room;
	}
	ends->round++;
	return r;
}

int cut_ends_look(struct cut_ends *ends, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < ends->n && r == 0; i++)
		if (ends->v[i].id)
			r = end_tcp_look(&ends->v[i].end, err);
	return r;
}

int cut_ends_dump(struct cut_ends *ends, struct object_dump *dump, const struct object_source *of,
		  Pbeam__Object *out, struct err *err)
{
	for (size_t i = 0; i < ends->n && !of->hidden; i++) {
		struct cut_end *end = &ends->v[i];
		int r;

		if (!end->id || end->end.ino != of->st.st_ino)
			continue;
		r = end_tcp_record(dump, &end->end, out, err);
		return r < 0 ? r : cut_mark(out, end->id, &end->end, err);
	}
	return 0;
}

void cut_ends_free(struct cut_ends *ends)
{
	for (size_t i = 0; i < ends->n; i++)
		end_tcp_free(&ends->v[i].end);
	free(ends->v);
	*ends = (struct cut_ends){0};
}
