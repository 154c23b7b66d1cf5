/* Answers the source which of its files exist on this host, and receives the contents of the others. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "channel/wire.h"
#include "image/file_replace.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/files/files_receiver.h"

#define FILE_SIZE_MAX (1ull << 50)

enum { FILES_MAX = 1 << 16 };

/* ---- beginning and end ---- */

static int add_path_maps(struct files_receiver *receiver, struct err *err)
{
	char from[PATH_MAX], to[PATH_MAX];

	/* The last map of a name wins, so the maps of the command, which come first, are added last. */
	for (size_t i = receiver->begin->n_maps; i > 0; i--) {
		const char *map = receiver->begin->maps[i - 1];

		if (!paths_parse_map(map, from, to, sizeof(from)))
			return err_set(err, -EINVAL, "`%s` is not FROM=TO with two absolute paths", map);
		if (paths_add(&receiver->paths, PATH_MAP, from, to, NULL) < 0)
			return err_code(err, -ENOMEM, "the path maps");
		receiver->changed = true;
	}
	return 0;
}

int files_receiver_new(struct files_receiver **out, struct names *names, struct rpid keeper,
		       const Pbeam__MigrateBegin *begin, const char *own_host, struct err *err)
{
	struct files_receiver *receiver = calloc(1, sizeof(*receiver));
	int r;

	*out = receiver;
	if (!receiver)
		return err_code(err, -ENOMEM, "the incoming files");
	*receiver = (struct files_receiver){.names = names, .keeper = keeper, .begin = begin, .fd = -1};
	r = paths_load(&receiver->paths, keeper);
	if (r < 0)
		return err_code(err, r, "the paths of the job");
	receiver->stored = paths_exist(keeper);
	snprintf(receiver->own_host, sizeof(receiver->own_host), "%s", own_host);
	r = files_store_open(&receiver->store, receiver->own_host, begin->job->uuid, err);
	if (r == 0)
		files_store_sweep(&receiver->store, names);
	return r < 0 ? r : add_path_maps(receiver, err);
}

static void close_partial_file(struct files_receiver *receiver)
{
	if (receiver->fd >= 0)
		close(receiver->fd);
	if (receiver->fd >= 0 && receiver->temporary[0])
		unlink(receiver->temporary);
	receiver->fd = -1;
}

void files_receiver_free(struct files_receiver *receiver)
{
	if (!receiver)
		return;
	close_partial_file(receiver);
	for (size_t i = 0; i < receiver->n; i++) {
		message_free(receiver->v[i].announced);
		free(receiver->v[i].real);
	}
	free(receiver->v);
	paths_free(&receiver->paths);
	free(receiver);
}

struct files_entry *files_find(const struct files_receiver *receiver, const ProtobufCBinaryData *path)
{
	for (size_t i = 0; i < receiver->n; i++) {
		const ProtobufCBinaryData *announced = &receiver->v[i].announced->path;

		if (announced->len == path->len && bytes_equal(announced->data, path->data, path->len))
			return &receiver->v[i];
	}
	return NULL;
}

/* ---- looking for files ---- */

static bool has_use(const Pbeam__MigrateFile *file, Pbeam__MigrateFile__Use use)
{
	return (file->use & (uint32_t)use) != 0;
}

static bool is_mode_executable(const Pbeam__MigrateFile *file)
{
	return (file->mode & 0111) != 0;
}

/* Translates a name to a path by the maps only, regardless of what was sent before. */
static void map_name(const struct files_receiver *receiver, const char *name, char out[PATH_MAX])
{
	const struct path_entry *entry = paths_find(&receiver->paths, name);

	if (!entry || entry->kind != PATH_MAP || !paths_real(&receiver->paths, name, out, PATH_MAX))
		snprintf(out, PATH_MAX, "%s", name);
}

static int set_found(struct files_entry *entry, Pbeam__MigrateFileFound__State state, const char *real)
{
	free(entry->real);
	entry->real = strdup(real);
	entry->state = state;
	return entry->real ? 0 : -ENOMEM;
}

static int refuse_entry(struct files_entry *entry, Pbeam__MigrateFileFound *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int refuse_entry(struct files_entry *entry, Pbeam__MigrateFileFound *out, const char *fmt, ...)
{
	char text[ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__REFUSED;
	return message_string(&out->text, text);
}

static int find_directory(const struct files_receiver *receiver, struct files_entry *entry, const char *name,
			  const char *here, Pbeam__MigrateFileFound *out)
{
	struct stat st;

	if (stat(here, &st) == 0 && S_ISDIR(st.st_mode))
		return set_found(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	return refuse_entry(entry, out,
			    "%s is the directory %s, which does not exist on %s; create it there, or use "
			    "--map %s=DIRECTORY",
			    entry->announced->who, here, receiver->own_host, name);
}

/* The file came to the source with the program and exists nowhere else, or it goes along now. At its home the
 * contents are put back. */
static int find_carried(struct files_receiver *receiver, struct files_entry *entry, const char *name,
			const char *here, Pbeam__MigrateFileFound *out)
{
	const Pbeam__MigrateFile *file = entry->announced;
	char path[PATH_MAX];
	struct stat st;

	if (!strcmp(file->home, receiver->own_host)) {
		if (receiver->begin->send_files || (stat(here, &st) < 0 && errno == ENOENT) ||
		    (st.st_ino == file->home_ino && (uint64_t)st.st_size == file->home_size &&
		     files_mtime_ns(&st) == file->home_mtime_ns))
			return set_found(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED, here);
		return refuse_entry(
			entry, out,
			"%s is %s, which was changed on %s since the program took its contents along; "
			"save what you need of it, then use --send-files to replace it",
			file->who, name, receiver->own_host);
	}
	if (files_store_written(&receiver->store, name, false, path, NULL) < 0)
		return refuse_entry(entry, out, "%s is %s, whose name is too long to be kept on %s",
				    file->who, name, receiver->own_host);
	receiver->changed = true;
	return set_found(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED, path);
}

static int find_written(struct files_receiver *receiver, struct files_entry *entry, const char *name,
			const char *here, Pbeam__MigrateFileFound *out)
{
	const Pbeam__MigrateFile *file = entry->announced;
	struct stat st;

	if (has_use(file, PBEAM__MIGRATE_FILE__USE__SENT))
		return find_carried(receiver, entry, name, here, out);
	if (!file->apart && stat(here, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == file->ino) {
		out->mtime_ns = files_mtime_ns(&st);
		out->ctime_ns = files_ctime_ns(&st);
		out->size = (uint64_t)st.st_size;
		return set_found(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	}
	if (!receiver->begin->send_files)
		return refuse_entry(
			entry, out,
			"%s is %s, open for writing, which is only on %s; put it on a file system that %s "
			"shares, or use --send-files to send it along",
			file->who, name, receiver->begin->from, receiver->own_host);
	return find_carried(receiver, entry, name, here, out);
}

static bool has_same_contents(const Pbeam__MigrateFile *file, const char *here)
{
	auto_close int fd = open(here, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	uint8_t digest[IMAGE_DIGEST];
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->size &&
	       (!has_use(file, PBEAM__MIGRATE_FILE__USE__PROGRAM) || access(here, X_OK) == 0) &&
	       files_digest(fd, file->size, digest) == 0 && file->digest.len == sizeof(digest) &&
	       !memcmp(digest, file->digest.data, sizeof(digest));
}

/* Makes the job's link to cached contents, and records it under every name of the file. */
static int use_sent(struct files_receiver *receiver, struct files_entry *entry, struct err *err)
{
	const Pbeam__MigrateFile *file = entry->announced;
	auto_free char *name = files_text(&file->name);
	const char *base = name ? strrchr(name, '/') : NULL;
	char path[PATH_MAX];
	enum path_kind kind = has_use(file, PBEAM__MIGRATE_FILE__USE__MAPPED) ? PATH_LIBRARY : PATH_SENT;
	const struct path_entry *known;
	int r;

	if (!base || !base[1])
		return err_set(err, -EPROTO, "malformed file name");
	r = files_store_link(&receiver->store, file->digest.data, is_mode_executable(file), base + 1, path,
			     err);
	if (r < 0)
		return r;
	/* A program counts as one under any name by which it is mapped. */
	known = paths_find(&receiver->paths, name);
	if (has_use(file, PBEAM__MIGRATE_FILE__USE__PROGRAM) ||
	    (known && known->kind == PATH_SENT && !strcmp(known->real, path)))
		kind = PATH_SENT;
	if (r == 0)
		r = paths_add(&receiver->paths, kind, name, path, NULL);
	for (size_t i = 0; i < file->n_links && r == 0; i++) {
		auto_free char *link = files_text(&file->links[i]);

		r = link ? paths_add(&receiver->paths, kind, link, path, NULL) : -ENOMEM;
	}
	entry->awaited = false;
	receiver->changed = true;
	return r < 0 ? r : set_found(entry, entry->state, path);
}

static int find_read(struct files_receiver *receiver, struct files_entry *entry, const char *here,
		     struct err *err)
{
	const Pbeam__MigrateFile *file = entry->announced;
	struct stat st;

	if (stat(here, &st) == 0 && st.st_ino == file->ino && (uint64_t)st.st_size == file->size &&
	    files_mtime_ns(&st) == file->mtime_ns && files_ctime_ns(&st) == file->ctime_ns)
		return set_found(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__DIGEST;
	if (file->digest.len != IMAGE_DIGEST)
		return 0;
	if (has_same_contents(file, here))
		return set_found(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__SAME;
	if (files_store_has(&receiver->store, file->digest.data, is_mode_executable(file)))
		return use_sent(receiver, entry, err);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__SEND;
	entry->awaited = true;
	return 0;
}

/* True for an absolute path without "//", "/./" and "/../": it also becomes a path below the job's directory.
 */
static bool is_plain_path(const char *path)
{
	size_t len;

	if (path[0] != '/')
		return false;
	for (const char *at = path + 1; path[1]; at += len + 1) {
		len = strcspn(at, "/");
		if (len == 0 || (at[0] == '.' && (len == 1 || (len == 2 && at[1] == '.'))))
			return false;
		if (!at[len])
			break;
	}
	return true;
}

static int find_announced_file(struct files_receiver *receiver, struct files_entry *entry,
			       Pbeam__MigrateFileFound *out, struct err *err)
{
	auto_free char *name = files_text(&entry->announced->name);
	char here[PATH_MAX];
	int r;

	if (!name || strlen(name) != entry->announced->name.len || !is_plain_path(name))
		return err_set(err, -EPROTO, "malformed file name: not an absolute path");
	map_name(receiver, name, here);
	if (has_use(entry->announced, PBEAM__MIGRATE_FILE__USE__DIRECTORY))
		r = find_directory(receiver, entry, name, here, out);
	else if (has_use(entry->announced, PBEAM__MIGRATE_FILE__USE__WRITTEN))
		r = find_written(receiver, entry, name, here, out);
	else
		r = find_read(receiver, entry, here, err);
	out->state = entry->state;
	return r;
}

/* Finds or adds the entry for an announced file, which is moved into it. NULL when out of memory. */
static struct files_entry *add_files_entry(struct files_receiver *receiver, Pbeam__MigrateFile **file)
{
	struct files_entry *entry = files_find(receiver, &(*file)->path), *more;

	if (entry) {
		message_free(entry->announced);
		entry->awaited = false;
	} else {
		more = receiver->n < FILES_MAX ? reallocarray(receiver->v, receiver->n + 1, sizeof(*more))
					       : NULL;
		if (!more)
			return NULL;
		receiver->v = more;
		entry = &more[receiver->n++];
		*entry = (struct files_entry){.state = PBEAM__MIGRATE_FILE_FOUND__STATE__SAME};
	}
	entry->announced = *file;
	*file = NULL;
	return entry;
}

/* The kernel looks for a program's interpreter by itself and would find that of this host. A program that
 * came with its own interpreter is executed from a copy that asks for that one. */
static int set_interpreter(struct files_receiver *receiver, const struct files_entry *entry, struct err *err)
{
	auto_free char *name = files_text(&entry->announced->name);
	char asked[PATH_MAX], there[PATH_MAX], path[PATH_MAX];
	auto_close int fd = open(entry->real, O_RDONLY | O_CLOEXEC);
	const struct path_entry *own;
	int r;

	if (!name || fd < 0 || !files_elf_interpreter(fd, asked))
		return 0;
	own = paths_find(&receiver->paths, asked);
	if (!own && realpath(asked, there))
		own = paths_find(&receiver->paths, there);
	if (!own)
		return 0;
	r = files_store_program(&receiver->store, entry->announced->digest.data, entry->real, own->real, path,
				err);
	if (r > 0)
		r = paths_add(&receiver->paths, PATH_PROGRAM, name, path, NULL);
	return r;
}

static int set_interpreters(struct files_receiver *receiver, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < receiver->n && r == 0; i++) {
		const struct files_entry *entry = &receiver->v[i];
		const struct path_entry *known = NULL;
		char name[PATH_MAX];

		if (has_use(entry->announced, PBEAM__MIGRATE_FILE__USE__PROGRAM) && entry->real)
			known = paths_name(&receiver->paths, entry->real, name, sizeof(name));
		if (known && known->kind == PATH_SENT)
			r = set_interpreter(receiver, entry, err);
	}
	return r;
}

/* Stores the job's paths for its scips once all contents are here. */
static int store_paths(struct files_receiver *receiver, struct err *err)
{
	int r;

	for (size_t i = 0; i < receiver->n; i++)
		if (receiver->v[i].awaited)
			return 0;
	if (!receiver->changed || receiver->begin->dry_run)
		return 0;
	r = set_interpreters(receiver, err);
	if (r < 0)
		return r;
	/* Even an empty list is stored: it makes the processes that are born from here on trap their paths.
	 */
	r = paths_store(&receiver->paths, receiver->names, receiver->keeper);
	receiver->changed = r < 0;
	receiver->stored = true;
	return r < 0 ? err_code(err, r, "store the paths of the job") : 0;
}

int files_receiver_answer(struct files_receiver *receiver, int channel, const struct frame *frame,
			  struct err *err)
{
	Pbeam__MigrateFiles *files = (void *)frame_unpack(frame, &pbeam__migrate_files__descriptor, err);
	Pbeam__MigrateFilesFound *found = message_new(&pbeam__migrate_files_found__descriptor);
	int r = !files ? -EPROTO : found ? 0 : err_code(err, -ENOMEM, "the incoming files");

	for (size_t i = 0; r == 0 && i < files->n_files; i++) {
		Pbeam__MigrateFileFound *out =
			message_add(found, files, pbeam__migrate_file_found__descriptor);
		struct files_entry *entry = out ? add_files_entry(receiver, &files->files[i]) : NULL;

		r = entry ? find_announced_file(receiver, entry, out, err) : -ENOMEM;
	}
	if (r == 0)
		r = store_paths(receiver, err);
	if (r == 0) {
		found->elsewhere = receiver->stored;
		for (size_t i = 0; i < receiver->n; i++)
			found->elsewhere |= receiver->v[i].awaited;
		r = frame_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES_FOUND, &found->base, NULL, 0,
			       err);
	}
	message_free(files);
	message_free(found);
	return r < 0 && !(err && err->code) ? err_code(err, r, "the incoming files") : r;
}

/* ---- contents ---- */

static struct files_entry *find_awaited(const struct files_receiver *receiver, const uint8_t *digest)
{
	for (size_t i = 0; i < receiver->n; i++)
		if (receiver->v[i].awaited &&
		    !memcmp(receiver->v[i].announced->digest.data, digest, IMAGE_DIGEST))
			return &receiver->v[i];
	return NULL;
}

/* A file without holes gets its blocks before its contents. Where it has holes the room is only looked at: so
 * that a file that does not fit is refused at once, not after most of it has come. */
static int reserve_file(const struct files_receiver *receiver, const Pbeam__MigrateFile *file,
			struct err *err)
{
	const uint64_t allocated = file->allocated < file->size ? file->allocated : file->size;
	struct statvfs fs;
	int r = ftruncate(receiver->fd, (off_t)file->size) < 0 ? -errno : 0;

	if (r == 0 && allocated == file->size)
		r = file_replace_reserve(receiver->fd, file->size);
	else if (r == 0 && fstatvfs(receiver->fd, &fs) == 0 && fs.f_frsize &&
		 allocated / fs.f_frsize > fs.f_bavail)
		r = -ENOSPC;
	return r < 0 ? err_code(err, r, "make room for a file of %llu bytes in %s of %s",
				(unsigned long long)allocated, receiver->store.top, receiver->own_host)
		     : 0;
}

static int begin_file(struct files_receiver *receiver, const Pbeam__MigrateFilePart *part,
		      const Pbeam__MigrateFile *file, struct err *err)
{
	if (receiver->fd >= 0 && !memcmp(receiver->digest, part->digest.data, IMAGE_DIGEST))
		return 0;
	close_partial_file(receiver);
	receiver->fd = files_store_new(&receiver->store, receiver->temporary, err);
	if (receiver->fd < 0)
		return receiver->fd;
	memcpy(receiver->digest, part->digest.data, IMAGE_DIGEST);
	return reserve_file(receiver, file, err);
}

/* The file is complete: enters it in the cache, and serves all that wait for it. */
static int end_file(struct files_receiver *receiver, const Pbeam__MigrateFilePart *part, struct err *err)
{
	uint8_t digest[IMAGE_DIGEST];
	struct files_entry *entry;
	int r = files_digest(receiver->fd, part->size, digest);

	if (r < 0)
		return err_code(err, r, "read a received file");
	if (memcmp(digest, receiver->digest, sizeof(digest)) != 0)
		return err_set(err, -ESTALE, "a file changed while it was sent; try again");
	while (r == 0 && (entry = find_awaited(receiver, digest)) != NULL) {
		bool executable = is_mode_executable(entry->announced);

		if (!files_store_has(&receiver->store, digest, executable))
			r = files_store_publish(&receiver->store, receiver->fd, receiver->temporary, digest,
						executable, err);
		if (r == 0)
			r = use_sent(receiver, entry, err);
	}
	receiver->temporary[0] = 0;
	close_partial_file(receiver);
	return r < 0 ? r : store_paths(receiver, err);
}

static int receive_part(struct files_receiver *receiver, int channel, const Pbeam__MigrateFilePart *part,
			uint8_t *room, struct err *err)
{
	const struct files_entry *entry;
	int r;

	if (part->digest.len != IMAGE_DIGEST || part->bytes > WIRE_PART_MAX || part->size > FILE_SIZE_MAX ||
	    part->offset > part->size || part->bytes > part->size - part->offset)
		return err_set(err, -EPROTO, "malformed part of a file");
	r = wire_take_bytes(channel, room, part->bytes, err);
	/* Two files with the same contents are sent twice when both were requested at once. */
	entry = r < 0 ? NULL : find_awaited(receiver, part->digest.data);
	if (!entry)
		return r;
	if (part->size != entry->announced->size)
		return err_set(err, -EPROTO, "malformed part of a file");
	r = begin_file(receiver, part, entry->announced, err);
	if (r == 0 && part->bytes) {
		r = io_pwrite_full(receiver->fd, room, part->bytes, (off_t)part->offset);
		if (r < 0)
			err_code(err, r, "write a received file into %s", receiver->store.top);
	}
	if (r == 0)
		r = fault_point("migrate-file-part", err);
	return r == 0 && part->last ? end_file(receiver, part, err) : r;
}

int files_receiver_take_part(struct files_receiver *receiver, int channel, const struct frame *frame,
			     uint8_t *room, struct err *err)
{
	Pbeam__MigrateFilePart *part =
		(void *)frame_unpack(frame, &pbeam__migrate_file_part__descriptor, err);
	int r = part ? receive_part(receiver, channel, part, room, err) : -EPROTO;

	message_free(part);
	return r;
}
