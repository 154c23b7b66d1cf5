/*
 * A manifest as the source wrote it, made one of this host: wherever it names a file, the path that the file
 * has here, and the numbers by which a restore knows it again.
 *
 * A written file whose contents come in the image keeps its numbers: it is put back by them. Everything else
 * has been found to be the same file or to have the same contents, and so gets those of what is here now.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/message.h"
#include "scip/migrate/files/arriving.h"

struct apply {
	struct files_arriving *arriving;
	bool last;
	struct err *err;
};

/* Where a path of the source's is that no exchange was about: through the maps. NULL: where it is there. */
static char *map_path(const struct apply *apply, const ProtobufCBinaryData *path)
{
	auto_free char *text = files_text(path);
	char here[PATH_MAX];
	const struct path_entry *entry =
		text ? paths_real(&apply->arriving->paths, text, here, sizeof(here)) : NULL;

	return entry && entry->kind == PATH_MAP ? strdup(here) : NULL;
}

static int set_path(const struct apply *apply, ProtobufCBinaryData *path)
{
	struct files_entry *entry;
	auto_free char *mapped = NULL;

	if (!path->len || path->data[0] != '/')
		return 0;
	entry = files_find(apply->arriving, path);
	if (entry && entry->real)
		return message_text(path, entry->real);
	mapped = entry ? NULL : map_path(apply, path);
	return mapped ? message_text(path, mapped) : 0;
}

/* The file at home is not written to any more: this is how it stays. */
static int keep_home(const struct apply *apply, const struct files_entry *entry,
		     const Pbeam__FileIdentity *file)
{
	auto_free char *name = files_text(&entry->told->name);
	struct path_home home = {.ino = file->ino, .size = file->size, .mtime_ns = file->mtime_ns};
	char path[PATH_MAX];
	int r;

	if (!name || !entry->real)
		return -ENOMEM;
	if (entry->told->home[0]) {
		snprintf(home.host, sizeof(home.host), "%s", entry->told->home);
		home.ino = entry->told->home_ino;
		home.size = entry->told->home_size;
		home.mtime_ns = entry->told->home_mtime_ns;
	} else {
		snprintf(home.host, sizeof(home.host), "%s", apply->arriving->begin->from);
	}
	if (!strcmp(home.host, apply->arriving->own_host))
		return 0; /* it is home again */
	r = files_store_written(&apply->arriving->store, name, true, path, apply->err);
	apply->arriving->changed = true;
	return r < 0 ? r : paths_add(&apply->arriving->paths, PATH_WRITTEN, name, entry->real, &home);
}

static int set_local(const struct apply *apply, Pbeam__FileIdentity *file, const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return err_sys(apply->err, "%s has just gone from %s", path, apply->arriving->own_host);
	file->dev = st.st_dev;
	file->ino = st.st_ino;
	file->size = (uint64_t)st.st_size;
	file->mtime_ns = files_mtime_ns(&st);
	return message_text(&file->path, path);
}

static int set_file(const struct apply *apply, Pbeam__FileIdentity *file)
{
	const struct files_entry *entry;
	int r;

	if (!file || file->deleted || !file->path.len)
		return 0;
	entry = files_find(apply->arriving, &file->path);
	if (!entry || !entry->real)
		return set_path(apply, &file->path);
	if (entry->state == PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED) {
		r = apply->last ? keep_home(apply, entry, file) : 0;
		return r < 0 ? r : message_text(&file->path, entry->real);
	}
	return set_local(apply, file, entry->real);
}

/* As the one with the times; contents that are there need not be put back. */
static int set_file_and_ctime(const struct apply *apply, Pbeam__FileIdentity *file, uint64_t *ctime_ns)
{
	const struct files_entry *entry = file ? files_find(apply->arriving, &file->path) : NULL;
	struct stat st;

	if (entry && entry->real && entry->state != PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED &&
	    stat(entry->real, &st) == 0)
		*ctime_ns = files_ctime_ns(&st);
	return set_file(apply, file);
}

static int set_object(const struct apply *apply, Pbeam__Object *object)
{
	int r = 0;

	switch ((int)object->kind_case) {
	case PBEAM__OBJECT__KIND_REGULAR:
		return object->regular->unlinked
			       ? 0
			       : set_file_and_ctime(apply, object->regular->file, &object->regular->ctime_ns);
	case PBEAM__OBJECT__KIND_DIRECTORY:
		return set_file(apply, object->directory->file);
	case PBEAM__OBJECT__KIND_PATH:
		return set_file(apply, object->path->file);
	case PBEAM__OBJECT__KIND_PIPE:
		r = set_path(apply, &object->pipe->fifo_path);
		return r < 0 || !object->pipe->fifo ? r : set_path(apply, &object->pipe->fifo->path);
	case PBEAM__OBJECT__KIND_INOTIFY:
		for (size_t i = 0; i < object->inotify->n_watches && r == 0; i++)
			r = set_path(apply, &object->inotify->watches[i]->path);
		return r;
	default:
		return 0;
	}
}

/* The program itself, or what is executed in its place. */
static int set_program(const struct apply *apply, Pbeam__FileIdentity *exe)
{
	const struct files_entry *entry = exe ? files_find(apply->arriving, &exe->path) : NULL;
	auto_free char *name = entry ? files_text(&entry->told->name) : NULL;
	const struct path_entry *program = name ? paths_program(&apply->arriving->paths, name) : NULL;

	return program ? set_local(apply, exe, program->real) : set_file(apply, exe);
}

static int set_process(const struct apply *apply, Pbeam__Process *process)
{
	int r = set_program(apply, process->exe);

	if (r == 0)
		r = set_path(apply, &process->cwd);
	for (size_t i = 0; r == 0 && process->memory && i < process->memory->n_mappings; i++)
		r = set_file(apply, process->memory->mappings[i]->file);
	return r;
}

int files_arriving_apply(struct files_arriving *arriving, Pbeam__Manifest *manifest, bool last,
			 struct err *err)
{
	const struct apply apply = {.arriving = arriving, .last = last, .err = err};
	int r = 0;

	for (size_t i = 0; i < manifest->n_processes && r == 0; i++)
		r = set_process(&apply, manifest->processes[i]);
	for (size_t i = 0; i < manifest->n_objects && r == 0; i++)
		r = set_object(&apply, manifest->objects[i]);
	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		if (!manifest->files[i]->unlinked)
			r = set_file_and_ctime(&apply, manifest->files[i]->file,
					       &manifest->files[i]->ctime_ns);
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		r = set_file(&apply, manifest->shared[i]->file);
	if (r == 0 && last && arriving->changed && !arriving->begin->dry_run) {
		r = paths_store(&arriving->paths, arriving->names, arriving->keeper);
		arriving->changed = r < 0;
	}
	return r < 0 && !(err && err->code) ? err_code(err, r, "the files of what came") : r;
}
