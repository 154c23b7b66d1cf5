/* The images of parts: which there are, and how they come to another host. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "channel/wire.h"
#include "image/file_replace.h"
#include "image/image.h"
#include "image/store.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/arrival/arrival.h"
#include "scip/cut/cut.h"

enum { PIECE = 1 << 20 };

/* ---- one file ---- */

static int send_image(int channel, const char *path, uint64_t bytes, struct err *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? err_sys(err, "open %s", path)
		      : wire_send_range(channel, fd, 0, bytes, "an image", err);
}

static int take_bytes(int channel, int fd, uint64_t bytes, struct err *err)
{
	auto_free char *buffer = malloc(PIECE);
	int r = buffer ? 0 : err_code(err, -ENOMEM, "take an image");

	for (uint64_t left = bytes; left && r == 0;) {
		size_t n = left < PIECE ? (size_t)left : PIECE;

		r = wire_take_bytes(channel, buffer, n, err);
		if (r == 0 && (r = io_write_full(fd, buffer, n)) < 0)
			err_code(err, r, "write an image of %llu bytes", (unsigned long long)bytes);
		left -= n;
	}
	return r;
}

/* Into a file that has its name when it is whole and durable. */
static int take_image(int channel, const char *path, uint64_t bytes, struct err *err)
{
	char temporary[PATH_MAX + 32];
	auto_close int fd = -1;
	bool named = false;
	int r;

	snprintf(temporary, sizeof(temporary), "%s.tmp-%d", path, (int)getpid());
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0700);
	if (fd < 0)
		return err_sys(err, "make %s", temporary);
	r = file_replace_reserve(fd, bytes);
	if (r < 0)
		err_code(err, r, "make room for an image of %llu bytes in %s", (unsigned long long)bytes,
			 temporary);
	if (r == 0)
		r = take_bytes(channel, fd, bytes, err);
	if (r == 0 && fsync(fd) < 0)
		r = err_sys(err, "sync %s", temporary);
	if (r == 0)
		r = file_replace_commit(temporary, path, true, &named, err);
	if (r < 0 && !named)
		unlink(temporary);
	return r;
}

static int size_of(const char *path, uint64_t *bytes, struct err *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return err_sys(err, "%s", path);
	*bytes = (uint64_t)st.st_size;
	return 0;
}

/* ---- the client ---- */

static void fill_request(Pbeam__CutRequest *request, int operation, const char *name, uint32_t number,
			 uint32_t part)
{
	pbeam__cut_request__init(request);
	request->operation = (Pbeam__CutRequest__Operation)operation;
	request->name = (char *)(uintptr_t)name;
	request->number = number;
	request->part = part;
}

int cut_get_image(int channel, const char *name, uint32_t number, uint32_t part, uint32_t as, struct err *err)
{
	Pbeam__CutRequest request;
	Pbeam__CutReply *reply;
	char path[PATH_MAX];
	int r = store_image_path(name, number, as, path, err);

	fill_request(&request, PBEAM__CUT_REQUEST__OPERATION__GET, name, number, part);
	reply = r == 0 ? cut_ask(channel, &request, err) : NULL;
	if (!reply)
		return err->code;
	r = take_image(channel, path, reply->bytes, err);
	message_free(reply);
	return r;
}

int cut_put_image(int channel, const char *name, const char *uuid, uint32_t number, uint32_t part,
		  uint32_t as, struct err *err)
{
	Pbeam__CutReply *reply = NULL;
	Pbeam__CutRequest request;
	char path[PATH_MAX];
	int r = store_image_path(name, number, part, path, err);

	fill_request(&request, PBEAM__CUT_REQUEST__OPERATION__PUT, name, number, as);
	request.job = (char *)(uintptr_t)uuid;
	if (r == 0)
		r = size_of(path, &request.bytes, err);
	if (r == 0)
		r = cut_send(channel, &request, err);
	if (r == 0)
		r = send_image(channel, path, request.bytes, err);
	/* A refusal from the receiver may have ended the transfer: it has the better reason. */
	if (r == 0 || r == -EPIPE || r == -ECONNRESET)
		reply = cut_receive(channel, err);
	r = reply ? 0 : err->code;
	message_free(reply);
	return r;
}

/* ---- the server ---- */

static int list_parts(const char *name, uint32_t number, Pbeam__CutReply *reply)
{
	auto_free uint32_t *parts = NULL;
	int n = store_parts(name, number, &parts, NULL);
	Pbeam__CutImage *image = message_add(reply, images, pbeam__cut_image__descriptor);

	if (!image)
		return -ENOMEM;
	image->number = number;
	for (int i = 0; i < n; i++)
		if (message_append_u32(&image->parts, &image->n_parts, parts[i]) < 0)
			return -ENOMEM;
	return 0;
}

static int do_look(const Pbeam__CutRequest *request, Pbeam__CutReply *reply, struct err *err)
{
	auto_free uint32_t *numbers = NULL;
	int n = store_list(request->name, &numbers, err), r;

	r = n < 0 ? n : store_last(request->name, &reply->number, err);
	for (int i = 0; i < n && r == 0; i++) {
		r = list_parts(request->name, numbers[i], reply);
		if (r < 0)
			err_code(err, r, "list checkpoints");
	}
	return r;
}

static int do_get(int channel, const Pbeam__CutRequest *request, struct err *err)
{
	Pbeam__CutReply reply = PBEAM__CUT_REPLY__INIT;
	char path[PATH_MAX];
	int r = store_image_path(request->name, request->number, request->part, path, err);

	if (r == 0)
		r = size_of(path, &reply.bytes, err);
	if (r < 0) {
		rpc_refuse(channel, err);
		return 0;
	}
	r = rpc_reply(channel, &reply.base, err);
	return r < 0 ? r : send_image(channel, path, reply.bytes, err);
}

/* After a failure in the middle the channel is closed: the rest of the image cannot be used. */
static int do_put(int channel, const Pbeam__CutRequest *request, struct err *err)
{
	Pbeam__CutReply reply = PBEAM__CUT_REPLY__INIT;
	char path[PATH_MAX];
	int r = fault_point("cut-put", err);

	if (r == 0)
		r = store_take(request->name, request->job, request->number, err);
	if (r == 0)
		r = store_image_path(request->name, request->number, request->part, path, err);
	if (r == 0)
		r = take_image(channel, path, request->bytes, err);
	if (r < 0) {
		rpc_refuse(channel, err);
		shutdown(channel, SHUT_RD);
		return r;
	}
	return rpc_reply(channel, &reply.base, err);
}

int cut_serve_store(int channel, const Pbeam__CutRequest *request, struct err *err)
{
	Pbeam__CutReply *reply;
	int r = cut_check_name(request->name, err);

	if (r < 0) {
		rpc_refuse(channel, err);
		return r;
	}
	switch ((int)request->operation) {
	case PBEAM__CUT_REQUEST__OPERATION__GET:
		r = do_get(channel, request, err);
		return r < 0 ? r : 1;
	case PBEAM__CUT_REQUEST__OPERATION__PUT:
		r = do_put(channel, request, err);
		return r < 0 ? r : 1;
	case PBEAM__CUT_REQUEST__OPERATION__LOOK:
	case PBEAM__CUT_REQUEST__OPERATION__PRUNE:
		break;
	default:
		return 0;
	}
	reply = message_new(&pbeam__cut_reply__descriptor);
	r = reply ? 0 : err_code(err, -ENOMEM, "answer");
	if (request->operation == PBEAM__CUT_REQUEST__OPERATION__LOOK && r == 0)
		r = do_look(request, reply, err);
	else if (r == 0 && request->number && request->part == STORE_COPY)
		store_drop_copy(request->name, request->number);
	else if (r == 0 && request->number)
		store_drop_parts(request->name, request->number);
	else if (r == 0)
		store_prune(request->name, request->keep);
	if (r < 0)
		rpc_refuse(channel, err);
	else
		r = rpc_reply(channel, &reply->base, err);
	message_free(reply);
	return r < 0 ? r : 1;
}
