/*
 * Rewrites the source's manifest for this host: every file that it names gets the path that the file has
 * here, and the numbers by which a restore recognizes it.
 *
 * A written file whose contents come in the image keeps its numbers, by which it is put back. Every other
 * file was found to be the same file or to have the same contents, and gets the numbers of the file that is
 * here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/message.h"
#include "scip/files/files_receiver.h"
#include "scip/object/object.h"

struct apply {
	struct files_receiver *receiver;
	bool last;
	struct err *err;
};

/* Translates a path that was not announced by the maps. NULL: it stays as it is. */
static char *map_path(const struct apply *apply, const ProtobufCBinaryData *path)
{
	auto_free char *text = files_text(path);
	char here[PATH_MAX];
	const struct path_entry *entry =
		text ? paths_real(&apply->receiver->paths, text, here, sizeof(here)) : NULL;

	return entry && entry->kind == PATH_MAP ? strdup(here) : NULL;
}

static int localize_path(const struct apply *apply, ProtobufCBinaryData *path)
{
	struct files_entry *entry;
	auto_free char *mapped = NULL;

	if (!path->len || path->data[0] != '/')
		return 0;
	entry = files_find(apply->receiver, path);
	if (entry && entry->real)
		return message_text(path, entry->real);
	mapped = entry ? NULL : map_path(apply, path);
	return mapped ? message_text(path, mapped) : 0;
}

/* Records how the file at home was left: it is not written to any more. */
static int record_home(const struct apply *apply, const struct files_entry *entry,
		       const Pbeam__FileIdentity *file)
{
	auto_free char *name = files_text(&entry->announced->name);
	struct path_home home = {.ino = file->ino, .size = file->size, .mtime_ns = file->mtime_ns};
	char path[PATH_MAX];
	int r;

	if (!name || !entry->real)
		return -ENOMEM;
	if (entry->announced->home[0]) {
		snprintf(home.host, sizeof(home.host), "%s", entry->announced->home);
		home.ino = entry->announced->home_ino;
		home.size = entry->announced->home_size;
		home.mtime_ns = entry->announced->home_mtime_ns;
	} else {
		snprintf(home.host, sizeof(home.host), "%s", apply->receiver->begin->from);
	}
	if (!strcmp(home.host, apply->receiver->own_host))
		return 0; /* the file is home again */
	r = files_store_written(&apply->receiver->store, name, true, path, apply->err);
	apply->receiver->changed = true;
	return r < 0 ? r : paths_add(&apply->receiver->paths, PATH_WRITTEN, name, entry->real, &home);
}

static int localize_identity(const struct apply *apply, Pbeam__FileIdentity *file, const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return err_sys(apply->err, "%s has just disappeared from %s", path,
			       apply->receiver->own_host);
	file->dev = st.st_dev;
	file->ino = st.st_ino;
	file->size = (uint64_t)st.st_size;
	file->mtime_ns = files_mtime_ns(&st);
	return message_text(&file->path, path);
}

static int localize_file(const struct apply *apply, Pbeam__FileIdentity *file)
{
	const struct files_entry *entry;
	int r;

	if (!file || file->deleted || !file->path.len)
		return 0;
	entry = files_find(apply->receiver, &file->path);
	if (!entry || !entry->real)
		return localize_path(apply, &file->path);
	if (entry->state == PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED) {
		r = apply->last ? record_home(apply, entry, file) : 0;
		return r < 0 ? r : message_text(&file->path, entry->real);
	}
	return localize_identity(apply, file, entry->real);
}

/* Also sets the change time, so that contents that are here already are not put back. */
static int localize_file_and_ctime(const struct apply *apply, Pbeam__FileIdentity *file, uint64_t *ctime_ns)
{
	const struct files_entry *entry = file ? files_find(apply->receiver, &file->path) : NULL;
	struct stat st;

	if (entry && entry->real && entry->state != PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED &&
	    stat(entry->real, &st) == 0)
		*ctime_ns = files_ctime_ns(&st);
	return localize_file(apply, file);
}

static int visit_file(void *arg, Pbeam__FileIdentity *file, uint64_t *ctime_ns)
{
	return ctime_ns ? localize_file_and_ctime(arg, file, ctime_ns) : localize_file(arg, file);
}

static int visit_path(void *arg, ProtobufCBinaryData *path)
{
	return localize_path(arg, path);
}

static int localize_object(struct apply *apply, Pbeam__Object *object)
{
	const struct object_visitor visitor = {.arg = apply, .file = visit_file, .path = visit_path};
	const struct object_ops *ops = object_ops_of(object);

	return ops && ops->visit_files ? ops->visit_files(object, &visitor) : 0;
}

/* Sets the program, or the copy that is executed in its place. */
static int localize_program(const struct apply *apply, Pbeam__FileIdentity *exe)
{
	const struct files_entry *entry = exe ? files_find(apply->receiver, &exe->path) : NULL;
	auto_free char *name = entry ? files_text(&entry->announced->name) : NULL;
	const struct path_entry *program = name ? paths_program(&apply->receiver->paths, name) : NULL;

	return program ? localize_identity(apply, exe, program->real) : localize_file(apply, exe);
}

static int localize_process(const struct apply *apply, Pbeam__Process *process)
{
	int r = localize_program(apply, process->exe);

	if (r == 0)
		r = localize_path(apply, &process->cwd);
	for (size_t i = 0; r == 0 && process->memory && i < process->memory->n_mappings; i++)
		r = localize_file(apply, process->memory->mappings[i]->file);
	return r;
}

int files_receiver_localize(struct files_receiver *receiver, Pbeam__Manifest *manifest, bool last,
			    struct err *err)
{
	struct apply apply = {.receiver = receiver, .last = last, .err = err};
	int r = 0;

	for (size_t i = 0; i < manifest->n_processes && r == 0; i++)
		r = localize_process(&apply, manifest->processes[i]);
	for (size_t i = 0; i < manifest->n_objects && r == 0; i++)
		r = localize_object(&apply, manifest->objects[i]);
	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		if (!manifest->files[i]->unlinked)
			r = localize_file_and_ctime(&apply, manifest->files[i]->file,
						    &manifest->files[i]->ctime_ns);
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		r = localize_file(&apply, manifest->shared[i]->file);
	if (r == 0 && last && receiver->changed && !receiver->begin->dry_run) {
		r = paths_store(&receiver->paths, receiver->names, receiver->keeper);
		receiver->changed = r < 0;
	}
	return r < 0 && !(err && err->code) ? err_code(err, r, "the files of the image") : r;
}
