/* The side where files arrive: what is there already, and what is to come. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/migrate/files/arriving.h"
#include "scip/migrate/migrate.h"

#define FILE_SIZE_MAX (1ull << 50)

enum { FILES_MAX = 1 << 16 };

/* ---- begin and end ---- */

static int add_maps(struct files_arriving *arriving, struct err *err)
{
	char from[PATH_MAX], to[PATH_MAX];

	/* The last one of a name counts: those of the command come first and are the stronger. */
	for (size_t i = arriving->begin->n_maps; i > 0; i--) {
		const char *map = arriving->begin->maps[i - 1];

		if (!paths_parse_map(map, from, to, sizeof(from)))
			return err_set(err, -EINVAL, "`%s` is not FROM=TO with two absolute paths", map);
		if (paths_add(&arriving->paths, PATH_MAP, from, to, NULL) < 0)
			return err_code(err, -ENOMEM, "the maps of paths");
		arriving->changed = true;
	}
	return 0;
}

int files_arriving_new(struct files_arriving **out, struct names *names, struct rpid keeper,
		       const Pbeam__MigrateBegin *begin, struct err *err)
{
	struct files_arriving *arriving = calloc(1, sizeof(*arriving));
	int r;

	*out = arriving;
	if (!arriving)
		return err_code(err, -ENOMEM, "the files that come");
	*arriving = (struct files_arriving){.names = names, .keeper = keeper, .begin = begin, .fd = -1};
	r = paths_load(&arriving->paths, keeper);
	if (r < 0)
		return err_code(err, r, "the paths of the job");
	arriving->stored = paths_exist(keeper);
	r = record_own_host(arriving->own_host, err);
	if (r == 0)
		r = files_store_open(&arriving->store, arriving->own_host, begin->job->uuid, err);
	if (r == 0)
		files_store_sweep(&arriving->store, names);
	return r < 0 ? r : add_maps(arriving, err);
}

static void close_part(struct files_arriving *arriving)
{
	if (arriving->fd >= 0)
		close(arriving->fd);
	if (arriving->fd >= 0 && arriving->temporary[0])
		unlink(arriving->temporary);
	arriving->fd = -1;
}

void files_arriving_free(struct files_arriving *arriving)
{
	if (!arriving)
		return;
	close_part(arriving);
	for (size_t i = 0; i < arriving->n; i++) {
		message_free(arriving->v[i].told);
		free(arriving->v[i].real);
	}
	free(arriving->v);
	paths_free(&arriving->paths);
	free(arriving);
}

struct files_entry *files_find(const struct files_arriving *arriving, const ProtobufCBinaryData *path)
{
	for (size_t i = 0; i < arriving->n; i++) {
		const ProtobufCBinaryData *told = &arriving->v[i].told->path;

		if (told->len == path->len && !memcmp(told->data, path->data, path->len))
			return &arriving->v[i];
	}
	return NULL;
}

/* ---- what is here ---- */

static bool used(const Pbeam__MigrateFile *file, Pbeam__MigrateFile__Use use)
{
	return (file->use & (uint32_t)use) != 0;
}

static bool executable(const Pbeam__MigrateFile *file)
{
	return (file->mode & 0111) != 0;
}

/* Where the name leads on this host, whatever was sent before. */
static void place_of(const struct files_arriving *arriving, const char *name, char out[PATH_MAX])
{
	const struct path_entry *entry = paths_find(&arriving->paths, name);

	if (!entry || entry->kind != PATH_MAP || !paths_real(&arriving->paths, name, out, PATH_MAX))
		snprintf(out, PATH_MAX, "%s", name);
}

static int found_at(struct files_entry *entry, Pbeam__MigrateFileFound__State state, const char *real)
{
	free(entry->real);
	entry->real = strdup(real);
	entry->state = state;
	return entry->real ? 0 : -ENOMEM;
}

static int refuse(struct files_entry *entry, Pbeam__MigrateFileFound *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int refuse(struct files_entry *entry, Pbeam__MigrateFileFound *out, const char *fmt, ...)
{
	char text[ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__REFUSED;
	return message_string(&out->text, text);
}

static int find_directory(const struct files_arriving *arriving, struct files_entry *entry, const char *name,
			  const char *here, Pbeam__MigrateFileFound *out)
{
	struct stat st;

	if (stat(here, &st) == 0 && S_ISDIR(st.st_mode))
		return found_at(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	return refuse(entry, out,
		      "%s is the directory %s, which %s has not; make it there, or say where it is with "
		      "--map %s=DIRECTORY",
		      entry->told->who, here, arriving->own_host, name);
}

/* It came along to the source and has no other place. Where it came from it is put back. */
static int find_carried(struct files_arriving *arriving, struct files_entry *entry, const char *name,
			const char *here, Pbeam__MigrateFileFound *out)
{
	const Pbeam__MigrateFile *file = entry->told;
	char path[PATH_MAX];
	struct stat st;

	if (!strcmp(file->home, arriving->own_host)) {
		if (arriving->begin->send_files || (stat(here, &st) < 0 && errno == ENOENT) ||
		    (st.st_ino == file->home_ino && (uint64_t)st.st_size == file->home_size &&
		     files_mtime_ns(&st) == file->home_mtime_ns))
			return found_at(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED, here);
		return refuse(entry, out,
			      "%s is %s, which was changed on %s since the program took its contents along; "
			      "keep what you need of it, then use --send-files to have it replaced",
			      file->who, name, arriving->own_host);
	}
	if (files_store_written(&arriving->store, name, false, path, NULL) < 0)
		return refuse(entry, out, "%s is %s, which has too long a name to be kept on %s", file->who,
			      name, arriving->own_host);
	arriving->changed = true;
	return found_at(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED, path);
}

static int find_written(struct files_arriving *arriving, struct files_entry *entry, const char *name,
			const char *here, Pbeam__MigrateFileFound *out)
{
	const Pbeam__MigrateFile *file = entry->told;
	struct stat st;

	if (used(file, PBEAM__MIGRATE_FILE__USE__SENT))
		return find_carried(arriving, entry, name, here, out);
	if (!file->apart && stat(here, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == file->ino) {
		out->mtime_ns = files_mtime_ns(&st);
		out->ctime_ns = files_ctime_ns(&st);
		out->size = (uint64_t)st.st_size;
		return found_at(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	}
	if (!arriving->begin->send_files)
		return refuse(entry, out,
			      "%s is %s, open for writing, which is only on %s; keep it where %s sees it as "
			      "well, or use --send-files to take it along",
			      file->who, name, arriving->begin->from, arriving->own_host);
	return find_carried(arriving, entry, name, here, out);
}

static bool same_contents(const Pbeam__MigrateFile *file, const char *here)
{
	auto_close int fd = open(here, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	uint8_t digest[IMAGE_DIGEST];
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->size &&
	       (!used(file, PBEAM__MIGRATE_FILE__USE__PROGRAM) || access(here, X_OK) == 0) &&
	       files_digest(fd, file->size, digest) == 0 && file->digest.len == sizeof(digest) &&
	       !memcmp(digest, file->digest.data, sizeof(digest));
}

/* A link of the job's to contents that are in the cache, and every name for it. */
static int use_sent(struct files_arriving *arriving, struct files_entry *entry, struct err *err)
{
	const Pbeam__MigrateFile *file = entry->told;
	auto_free char *name = files_text(&file->name);
	const char *base = name ? strrchr(name, '/') : NULL;
	char path[PATH_MAX];
	enum path_kind kind = used(file, PBEAM__MIGRATE_FILE__USE__MAPPED) ? PATH_LIBRARY : PATH_SENT;
	const struct path_entry *known;
	int r;

	if (!base || !base[1])
		return err_set(err, -EPROTO, "a file without a name came");
	r = files_store_link(&arriving->store, file->digest.data, executable(file), base + 1, path, err);
	if (r < 0)
		return r;
	/* A program is one under whatever name it is mapped. */
	known = paths_find(&arriving->paths, name);
	if (used(file, PBEAM__MIGRATE_FILE__USE__PROGRAM) ||
	    (known && known->kind == PATH_SENT && !strcmp(known->real, path)))
		kind = PATH_SENT;
	if (r == 0)
		r = paths_add(&arriving->paths, kind, name, path, NULL);
	for (size_t i = 0; i < file->n_links && r == 0; i++) {
		auto_free char *link = files_text(&file->links[i]);

		r = link ? paths_add(&arriving->paths, kind, link, path, NULL) : -ENOMEM;
	}
	entry->awaited = false;
	arriving->changed = true;
	return r < 0 ? r : found_at(entry, entry->state, path);
}

static int find_read(struct files_arriving *arriving, struct files_entry *entry, const char *here,
		     struct err *err)
{
	const Pbeam__MigrateFile *file = entry->told;
	struct stat st;

	if (stat(here, &st) == 0 && st.st_ino == file->ino && (uint64_t)st.st_size == file->size &&
	    files_mtime_ns(&st) == file->mtime_ns && files_ctime_ns(&st) == file->ctime_ns)
		return found_at(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__DIGEST;
	if (file->digest.len != IMAGE_DIGEST)
		return 0;
	if (same_contents(file, here))
		return found_at(entry, PBEAM__MIGRATE_FILE_FOUND__STATE__SAME, here);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__SAME;
	if (files_store_has(&arriving->store, file->digest.data, executable(file)))
		return use_sent(arriving, entry, err);
	entry->state = PBEAM__MIGRATE_FILE_FOUND__STATE__SEND;
	entry->awaited = true;
	return 0;
}

static int look(struct files_arriving *arriving, struct files_entry *entry, Pbeam__MigrateFileFound *out,
		struct err *err)
{
	auto_free char *name = files_text(&entry->told->name);
	char here[PATH_MAX];
	int r;

	if (!name || name[0] != '/' || strlen(name) != entry->told->name.len)
		return err_set(err, -EPROTO, "a file came whose name is no absolute path");
	place_of(arriving, name, here);
	if (used(entry->told, PBEAM__MIGRATE_FILE__USE__DIRECTORY))
		r = find_directory(arriving, entry, name, here, out);
	else if (used(entry->told, PBEAM__MIGRATE_FILE__USE__WRITTEN))
		r = find_written(arriving, entry, name, here, out);
	else
		r = find_read(arriving, entry, here, err);
	out->state = entry->state;
	return r;
}

/* The entry for a file of the message, which is taken out of it. */
static struct files_entry *enter(struct files_arriving *arriving, Pbeam__MigrateFile **file)
{
	struct files_entry *entry = files_find(arriving, &(*file)->path), *more;

	if (entry) {
		message_free(entry->told);
	} else {
		more = arriving->n < FILES_MAX ? reallocarray(arriving->v, arriving->n + 1, sizeof(*more))
					       : NULL;
		if (!more)
			return NULL;
		arriving->v = more;
		entry = &more[arriving->n++];
		*entry = (struct files_entry){.state = PBEAM__MIGRATE_FILE_FOUND__STATE__SAME};
	}
	entry->told = *file;
	*file = NULL;
	return entry;
}

/* The kernel looks for a program's interpreter by itself, and would find this host's: of a program that came
 * along with its own there is a copy that asks for that. */
static int set_interpreter(struct files_arriving *arriving, const struct files_entry *entry, struct err *err)
{
	auto_free char *name = files_text(&entry->told->name);
	char asked[PATH_MAX], there[PATH_MAX], path[PATH_MAX];
	auto_close int fd = open(entry->real, O_RDONLY | O_CLOEXEC);
	const struct path_entry *own;
	int r;

	if (!name || fd < 0 || !files_elf_interpreter(fd, asked))
		return 0;
	own = paths_find(&arriving->paths, asked);
	if (!own && realpath(asked, there))
		own = paths_find(&arriving->paths, there);
	if (!own)
		return 0;
	r = files_store_program(&arriving->store, entry->told->digest.data, entry->real, own->real, path,
				err);
	if (r > 0)
		r = paths_add(&arriving->paths, PATH_PROGRAM, name, path, NULL);
	return r;
}

static int set_interpreters(struct files_arriving *arriving, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < arriving->n && r == 0; i++) {
		const struct files_entry *entry = &arriving->v[i];
		const struct path_entry *known = NULL;
		char name[PATH_MAX];

		if (used(entry->told, PBEAM__MIGRATE_FILE__USE__PROGRAM) && entry->real)
			known = paths_name(&arriving->paths, entry->real, name, sizeof(name));
		if (known && known->kind == PATH_SENT)
			r = set_interpreter(arriving, entry, err);
	}
	return r;
}

/* The scips of the job are to know once everything is here. */
static int settle(struct files_arriving *arriving, struct err *err)
{
	int r;

	for (size_t i = 0; i < arriving->n; i++)
		if (arriving->v[i].awaited)
			return 0;
	if (!arriving->changed || arriving->begin->dry_run)
		return 0;
	r = set_interpreters(arriving, err);
	if (r < 0)
		return r;
	/* Also where it is still empty: processes that are made from here on have their paths trapped. */
	r = paths_store(&arriving->paths, arriving->names, arriving->keeper);
	arriving->changed = r < 0;
	arriving->stored = true;
	return r < 0 ? err_code(err, r, "write down the paths of the job") : 0;
}

int files_arriving_told(struct files_arriving *arriving, int channel, const struct frame *frame,
			struct err *err)
{
	Pbeam__MigrateFiles *files = (void *)frame_unpack(frame, &pbeam__migrate_files__descriptor, err);
	Pbeam__MigrateFilesFound *found = message_new(&pbeam__migrate_files_found__descriptor);
	int r = !files ? -EPROTO : found ? 0 : err_code(err, -ENOMEM, "the files that come");

	for (size_t i = 0; r == 0 && i < files->n_files; i++) {
		Pbeam__MigrateFileFound *out =
			message_add(found, files, pbeam__migrate_file_found__descriptor);
		struct files_entry *entry = out ? enter(arriving, &files->files[i]) : NULL;

		r = entry ? look(arriving, entry, out, err) : -ENOMEM;
	}
	if (r == 0)
		r = settle(arriving, err);
	if (r == 0) {
		found->elsewhere = arriving->stored;
		for (size_t i = 0; i < arriving->n; i++)
			found->elsewhere |= arriving->v[i].awaited;
		r = frame_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES_FOUND, &found->base, NULL, 0,
			       err);
	}
	message_free(files);
	message_free(found);
	return r < 0 && !err->code ? err_code(err, r, "the files that come") : r;
}

/* ---- contents ---- */

static struct files_entry *find_awaited(const struct files_arriving *arriving, const uint8_t *digest)
{
	for (size_t i = 0; i < arriving->n; i++)
		if (arriving->v[i].awaited && !memcmp(arriving->v[i].told->digest.data, digest, IMAGE_DIGEST))
			return &arriving->v[i];
	return NULL;
}

static int begin_file(struct files_arriving *arriving, const Pbeam__MigrateFilePart *part, struct err *err)
{
	if (arriving->fd >= 0 && !memcmp(arriving->digest, part->digest.data, IMAGE_DIGEST))
		return 0;
	close_part(arriving);
	arriving->fd = files_store_new(&arriving->store, arriving->temporary, err);
	if (arriving->fd < 0)
		return arriving->fd;
	memcpy(arriving->digest, part->digest.data, IMAGE_DIGEST);
	return ftruncate(arriving->fd, (off_t)part->size) < 0
		       ? err_sys(err, "make room for a file of %llu bytes", (unsigned long long)part->size)
		       : 0;
}

/* All is here: into the cache, and for all who wait for it. */
static int end_file(struct files_arriving *arriving, const Pbeam__MigrateFilePart *part, struct err *err)
{
	uint8_t digest[IMAGE_DIGEST];
	struct files_entry *entry;
	int r = files_digest(arriving->fd, part->size, digest);

	if (r < 0)
		return err_code(err, r, "read a file that came");
	if (memcmp(digest, arriving->digest, sizeof(digest)) != 0)
		return err_set(err, -ESTALE, "a file changed while it was sent; try again");
	while (r == 0 && (entry = find_awaited(arriving, digest)) != NULL) {
		bool can_be_executed = executable(entry->told);

		if (!files_store_has(&arriving->store, digest, can_be_executed))
			r = files_store_publish(&arriving->store, arriving->fd, arriving->temporary, digest,
						can_be_executed, err);
		if (r == 0)
			r = use_sent(arriving, entry, err);
	}
	arriving->temporary[0] = 0;
	close_part(arriving);
	return r < 0 ? r : settle(arriving, err);
}

static int take_part(struct files_arriving *arriving, int channel, const Pbeam__MigrateFilePart *part,
		     uint8_t *room, struct err *err)
{
	int r;

	if (part->digest.len != IMAGE_DIGEST || part->bytes > WIRE_PART_MAX || part->size > FILE_SIZE_MAX ||
	    part->offset > part->size || part->bytes > part->size - part->offset)
		return err_set(err, -EPROTO, "a part of a file came that cannot be");
	r = wire_take_bytes(channel, room, part->bytes, err);
	/* Two files of the same contents are sent twice where both were asked for at once. */
	if (r < 0 || !find_awaited(arriving, part->digest.data))
		return r;
	r = begin_file(arriving, part, err);
	if (r == 0 && part->bytes) {
		r = io_pwrite_full(arriving->fd, room, part->bytes, (off_t)part->offset);
		if (r < 0)
			err_code(err, r, "write a file that came into %s", arriving->store.top);
	}
	if (r == 0)
		r = fault_point("migrate-file-part", err);
	return r == 0 && part->last ? end_file(arriving, part, err) : r;
}

int files_arriving_part(struct files_arriving *arriving, int channel, const struct frame *frame,
			uint8_t *room, struct err *err)
{
	Pbeam__MigrateFilePart *part =
		(void *)frame_unpack(frame, &pbeam__migrate_file_part__descriptor, err);
	int r = part ? take_part(arriving, channel, part, room, err) : -EPROTO;

	message_free(part);
	return r;
}
