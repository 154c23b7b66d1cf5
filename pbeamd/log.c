/*
 * log: the checkpoints of a job. Each image is opened, so that what is damaged is shown as that.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/image.h"
#include "image/store.h"
#include "pbeamd/server.h"

struct row {
	Pbeam__LogEntry entry;
	char path[PATH_MAX];
	char problem[ERR_TEXT_MAX];
};

static void fill_row(struct row *row, const char *store, uint32_t number)
{
	Pbeam__LogEntry *entry = &row->entry;
	struct err err = ERR_INIT;
	struct image_reader *image;
	struct stat st;

	pbeam__log_entry__init(entry);
	entry->number = number;
	if (store_find(store, number, row->path, &err) == 0 && stat(row->path, &st) == 0) {
		entry->bytes = (uint64_t)st.st_size;
		entry->created_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
		if (image_reader_open(&image, row->path, &err) == 0) {
			const Pbeam__Manifest *manifest = image_reader_manifest(image);

			entry->created_ns = manifest->created_ns;
			entry->pause_ns = manifest->pause_ns;
			entry->processes = (uint32_t)manifest->n_processes;
			for (size_t i = 0; manifest->cut && i < manifest->cut->n_parts; i++) {
				entry->processes += manifest->cut->parts[i]->processes;
				entry->bytes += manifest->cut->parts[i]->bytes;
			}
			image_reader_close(image);
		}
	}
	memcpy(row->problem, err.text, sizeof(row->problem));
	entry->path = row->path;
	entry->problem = row->problem;
}

void log_work(struct server *server, int sock, const void *arg)
{
	const struct target *target = arg;
	Pbeam__CheckpointLog list = PBEAM__CHECKPOINT_LOG__INIT;
	struct err err = ERR_INIT;
	auto_free uint32_t *numbers = NULL;
	struct row *rows = NULL;
	int n = store_list(target->store, &numbers, &err);

	if (n >= 0) {
		rows = calloc((size_t)n + 1, sizeof(*rows));
		list.entries = calloc((size_t)n + 1, sizeof(Pbeam__LogEntry *));
		if (!rows || !list.entries)
			n = err_code(&err, -ENOMEM, "list %d checkpoints", n);
	}
	for (int i = 0; i < n; i++) {
		fill_row(&rows[i], target->store, numbers[i]);
		list.entries[list.n_entries++] = &rows[i].entry;
	}
	if (n < 0) {
		err_wrap(&err, n, "%s", target->who);
		worker_refuse(sock, &err);
	} else if (frame_send(sock, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, &list.base, NULL, 0, &err) < 0) {
		log_info("list of checkpoints: %s", err.text);
	}
	free(list.entries);
	free(rows);
}
