/*
 * log: the checkpoints of a job that this host has. Each image is opened, so that a damaged one is reported
 * as such.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/image.h"
#include "image/store.h"
#include "pbeamd/services/checkpoints.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/message.h"
#include "proto/rpc.h"

static int describe_manifest(Pbeam__LogEntry *entry, const Pbeam__Manifest *manifest)
{
	entry->created_ns = manifest->created_ns;
	entry->pause_ns = manifest->pause_ns;
	entry->processes = (uint32_t)manifest->n_processes;
	entry->cut = manifest->cut != NULL;
	for (size_t i = 0; manifest->cut && i < manifest->cut->n_parts; i++) {
		entry->processes += manifest->cut->parts[i]->processes;
		entry->bytes += manifest->cut->parts[i]->bytes;
	}
	for (size_t i = 0; i < manifest->n_incomplete; i++)
		if (message_append_string(&entry->incomplete, &entry->n_incomplete, manifest->incomplete[i]) <
		    0)
			return -ENOMEM;
	for (size_t i = 0; i < manifest->n_trees; i++) {
		auto_free char *path = message_dup_text(&manifest->trees[i]->path);

		if (!path || message_append_string(&entry->track, &entry->n_track, path) < 0)
			return -ENOMEM;
	}
	entry->root = manifest->job ? manifest->job->root_vpid : 0;
	return manifest->job ? message_string(&entry->job, manifest->job->uuid) : 0;
}

static int checkpoint_log_describe(Pbeam__CheckpointLog *list, const char *store, uint32_t number)
{
	Pbeam__LogEntry *entry = message_add(list, entries, pbeam__log_entry__descriptor);
	Pbeam__LogCopy *copy = entry ? message_add(entry, copies, pbeam__log_copy__descriptor) : NULL;
	struct err problem = ERR_INIT;
	struct image_reader *image;
	char path[PATH_MAX] = "";
	struct stat st;
	int r = 0;

	if (!copy || message_string(&copy->host, list->here) < 0)
		return -ENOMEM;
	entry->number = number;
	if (store_find(store, number, path, &problem) == 0 && stat(path, &st) == 0) {
		entry->bytes = (uint64_t)st.st_size;
		entry->created_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
		if (image_reader_open(&image, path, &problem) == 0) {
			r = describe_manifest(entry, image_reader_manifest(image));
			image_reader_close(image);
		}
	}
	if (r == 0)
		r = message_string(&copy->path, path);
	return r < 0 ? r : message_string(&entry->problem, problem.text);
}

/* True if the target runs here: not just its stub, nor just a part of its job, whose first process has its
 * parent on another host. */
static bool checkpoint_log_is_here(const struct target *target)
{
	bool inner = target->process.vpid.n != target->job.root.n;

	return target->live && target->process.rpid.n && target->process.state != NAME_STATE_STUB &&
	       (inner || target->process.parent.n <= 0);
}

static int checkpoint_log_fill(struct server *server, const struct target *target, Pbeam__CheckpointLog *list,
			       struct err *err)
{
	auto_free uint32_t *numbers = NULL;
	int n = store_list(target->store, &numbers, err), r = n < 0 ? n : 0;
	char here[256];

	target_host(server, here);
	list->live = target->live && target->process.rpid.n; /* else it is about to end */
	list->inner = list->live && target->process.vpid.n != target->job.root.n;
	if (r == 0 &&
	    (message_string(&list->store, target->store) < 0 || message_string(&list->here, here) < 0 ||
	     message_string(&list->job, list->live ? target->job.uuid : "") < 0 ||
	     message_string(&list->at, checkpoint_log_is_here(target) ? here : "") < 0))
		r = err_code(err, -ENOMEM, "list %d checkpoints", n);
	for (int i = 0; i < n && r == 0; i++)
		if (checkpoint_log_describe(list, target->store, numbers[i]) < 0)
			r = err_code(err, -ENOMEM, "list %d checkpoints", n);
	if (r == 0 && checkpoints_name(list) < 0)
		r = err_code(err, -ENOMEM, "list %d checkpoints", n);
	return r;
}

void log_work(struct server *server, int sock, const void *arg)
{
	Pbeam__CheckpointLog *list = message_new(&pbeam__checkpoint_log__descriptor);
	const struct target *target = arg;
	struct err err = ERR_INIT;
	int r = list ? checkpoint_log_fill(server, target, list, &err)
		     : err_code(&err, -ENOMEM, "list checkpoints");

	if (r < 0) {
		err_wrap(&err, r, "%s", target->who);
		rpc_refuse(sock, &err);
	} else if (rpc_reply(sock, &list->base, &err) < 0) {
		log_info("list of checkpoints: %s", err.text);
	}
	message_free(list);
}
