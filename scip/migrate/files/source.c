/*
 * The side that files leave. One exchange is at most two questions: what is new, and once more, with digests,
 * those files that the target could not tell by their numbers; then the contents that it wants.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/migrate/files/files.h"
#include "scip/migrate/migrate.h"

#define NS_PER_S 1000000000ull

enum { LINKS_MAX = 32 };

/* A file whose contents the image must hold. */
struct carried {
	uint64_t ino;
};

struct files_leaving {
	struct files_options options;
	struct files_store store;
	struct paths paths;	/* of this host */
	struct files_list told; /* and answered */
	struct carried *carried;
	size_t ncarried;
	bool elsewhere, carries;
	uint64_t began_ns, sent; /* of this exchange */
};

int files_leaving_new(struct files_leaving **out, const struct files_options *options, struct err *err)
{
	struct files_leaving *leaving = calloc(1, sizeof(*leaving));
	struct name_job job;
	int r;

	*out = leaving;
	if (!leaving)
		return err_code(err, -ENOMEM, "the files that go");
	leaving->options = *options;
	r = paths_load(&leaving->paths, options->keeper);
	if (r == 0)
		r = names_job_get(options->names, options->keeper, &job);
	if (r < 0)
		return err_code(err, r, "the paths of the job");
	return leaving->paths.n ? files_store_open(&leaving->store, options->own_host, job.uuid, err) : 0;
}

void files_leaving_free(struct files_leaving *leaving)
{
	if (!leaving)
		return;
	files_list_free(&leaving->told);
	paths_free(&leaving->paths);
	free(leaving->carried);
	free(leaving);
}

bool files_leaving_elsewhere(const struct files_leaving *leaving)
{
	return leaving->elsewhere;
}

uint64_t files_leaving_limit(const struct files_leaving *leaving, const struct stat *st, uint64_t max)
{
	for (size_t i = 0; i < leaving->ncarried; i++)
		if (leaving->carried[i].ino == st->st_ino)
			return UINT64_MAX;
	for (size_t i = 0; i < leaving->told.n; i++)
		if (leaving->told.v[i]->ino == st->st_ino)
			return 0; /* it is the same file there */
	return max;
}

void files_leaving_left(const struct files_leaving *leaving)
{
	for (size_t i = 0; i < leaving->paths.n; i++)
		if (leaving->paths.v[i].kind == PATH_WRITTEN)
			files_store_drop(&leaving->store, leaving->paths.v[i].real);
}

static const Pbeam__MigrateFile *find_told(const struct files_leaving *leaving,
					   const Pbeam__MigrateFile *file)
{
	for (size_t i = 0; i < leaving->told.n; i++) {
		const Pbeam__MigrateFile *told = leaving->told.v[i];

		if (told->path.len == file->path.len &&
		    !memcmp(told->path.data, file->path.data, file->path.len) && told->ino == file->ino &&
		    (file->use & ~told->use) == 0)
			return told;
	}
	return NULL;
}

/* Everything that these processes use and that the target does not know of. */
static int list_new(struct files_leaving *leaving, const struct name_process *processes, size_t n,
		    struct files_list *list, struct err *err)
{
	size_t kept = 0;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = files_list_add(list, &processes[i], &leaving->paths, err);
	for (size_t i = 0; i < list->n; i++) {
		if (find_told(leaving, list->v[i]))
			message_free(list->v[i]);
		else
			list->v[kept++] = list->v[i];
	}
	list->n = kept;
	return r;
}

/* ---- questions ---- */

static int ask(int channel, Pbeam__MigrateFile **files, size_t n, Pbeam__MigrateFilesFound **found,
	       struct err *err)
{
	Pbeam__MigrateFiles message = PBEAM__MIGRATE_FILES__INIT;
	int r;

	message.n_files = n;
	message.files = files;
	*found = NULL;
	r = frame_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES, &message.base, NULL, 0, err);
	if (r == 0)
		r = wire_take(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES_FOUND,
			      &pbeam__migrate_files_found__descriptor, found, err);
	if (r == 0 && (*found)->n_files != n) {
		message_free(*found);
		*found = NULL;
		r = err_set(err, -EPROTO, "the other host does not answer for every file");
	}
	return r;
}

/* Open on this side: not by its name where the process has it under another. */
static int open_file(const struct files_leaving *leaving, const Pbeam__MigrateFile *file, struct err *err)
{
	auto_free char *path = files_text(&file->path);
	struct stat st;
	int fd = path ? open(files_contents(&leaving->paths, path),
			     O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)
		      : -ENOMEM;

	if (fd < 0)
		return err_sys(err,
			       "%s is %s, which you may not read, so that it cannot be sent along; map it",
			       file->who, path);
	if (fstat(fd, &st) == 0 && st.st_ino == file->ino && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return err_set(err, -ESTALE, "%s is %s, which has just been replaced; try again", file->who, path);
}

/* Symbolic links beside the file that lead to it: a library's other names. */
static int find_links(Pbeam__MigrateFile *file)
{
	auto_free char *name = files_text(&file->name), *path = files_text(&file->path);
	char *slash = path ? strrchr(path, '/') : NULL, *name_slash = name ? strrchr(name, '/') : NULL;
	const struct dirent *item;
	struct stat st;
	int r = 0;

	if (!slash || !name_slash)
		return -ENOMEM;
	*slash = 0;
	*name_slash = 0;
	auto_closedir DIR *dir = opendir(*path ? path : "/");
	while (r == 0 && dir && file->n_links < LINKS_MAX && (item = readdir(dir)) != NULL) {
		auto_free char *text = NULL;
		ProtobufCBinaryData *more;

		if (item->d_type != DT_LNK || fstatat(dirfd(dir), item->d_name, &st, 0) < 0 ||
		    st.st_ino != file->ino)
			continue;
		more = reallocarray(file->links, file->n_links + 1, sizeof(*more));
		if (!more || asprintf(&text, "%s/%s", name, item->d_name) < 0)
			return -ENOMEM;
		file->links = more;
		more[file->n_links] = (ProtobufCBinaryData){0};
		r = message_text(&more[file->n_links++], text);
	}
	return r;
}

static int add_digest(const struct files_leaving *leaving, Pbeam__MigrateFile *file, struct err *err)
{
	uint8_t digest[IMAGE_DIGEST];
	auto_close int fd = open_file(leaving, file, err);
	int r = fd;

	if (r >= 0)
		r = files_digest(fd, file->size, digest);
	if (r == 0)
		r = message_bytes(&file->digest, digest, sizeof(digest));
	if (r == 0)
		r = find_links(file);
	return r < 0 && !(err && err->code) ? err_code(err, r, "read %s", file->path.data) : r;
}

/* That the target sees the same file: its times there are not older than they were here before, nor newer
 * than now. */
static bool is_same_file(const Pbeam__MigrateFile *file, const Pbeam__MigrateFileFound *found)
{
	auto_free char *path = files_text(&file->path);
	struct stat st;

	return path && stat(path, &st) == 0 && st.st_ino == file->ino && found->mtime_ns >= file->mtime_ns &&
	       found->mtime_ns <= files_mtime_ns(&st) && found->ctime_ns >= file->ctime_ns &&
	       found->ctime_ns <= files_ctime_ns(&st);
}

static int refuse(struct files_leaving *leaving, const char *text, struct err *err)
{
	if (!leaving->options.dry_run)
		return err_set(err, -ENOENT, "%s", text);
	leaving->options.obstacle(leaving->options.obstacle_arg, text);
	return 0;
}

static int carry(struct files_leaving *leaving, const Pbeam__MigrateFile *file)
{
	struct carried *more = reallocarray(leaving->carried, leaving->ncarried + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	leaving->carried = more;
	more[leaving->ncarried++].ino = file->ino;
	return 0;
}

/* ---- contents ---- */

static void hold_back(const struct files_leaving *leaving)
{
	uint64_t spent = io_now_ns(CLOCK_MONOTONIC) - leaving->began_ns, due;

	if (!leaving->options.bandwidth)
		return;
	due = (uint64_t)((double)leaving->sent / (double)leaving->options.bandwidth * NS_PER_S);
	if (due > spent)
		nanosleep(&(struct timespec){(time_t)((due - spent) / NS_PER_S),
					     (long)((due - spent) % NS_PER_S)},
			  NULL);
}

static int send_range(struct files_leaving *leaving, int channel, int fd, const Pbeam__MigrateFilePart *part,
		      struct err *err)
{
	off_t at = (off_t)part->offset;
	int r = frame_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILE, &part->base, NULL, 0, err);

	while (r == 0 && (uint64_t)at < part->offset + part->bytes) {
		ssize_t n = sendfile(channel, fd, &at, part->offset + part->bytes - (uint64_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_set(err, n < 0 ? -errno : -ESTALE, "send a file: %s",
				       n < 0 ? strerror(errno) : "it has become shorter");
	}
	leaving->sent += part->bytes;
	hold_back(leaving);
	return r;
}

/* The data of the file, its holes left out. */
static int send_contents(struct files_leaving *leaving, int channel, const Pbeam__MigrateFile *file,
			 struct err *err)
{
	Pbeam__MigrateFilePart part = PBEAM__MIGRATE_FILE_PART__INIT;
	auto_close int fd = open_file(leaving, file, err);
	uint64_t at = 0;
	int r = fd < 0 ? fd : 0;

	part.digest = file->digest;
	part.size = file->size;
	part.mode = file->mode;
	while (r == 0 && at < file->size) {
		off_t data = lseek(fd, (off_t)at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			break;
		data = data < 0 ? (off_t)at : data; /* a file system that cannot tell */
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0 || (uint64_t)hole > file->size)
			hole = (off_t)file->size;
		for (at = (uint64_t)data; r == 0 && at < (uint64_t)hole; at += part.bytes) {
			uint64_t left = (uint64_t)hole - at;

			part.offset = at;
			part.bytes = left < WIRE_PART_MAX ? left : WIRE_PART_MAX;
			r = send_range(leaving, channel, fd, &part, err);
		}
	}
	part.offset = part.bytes = 0;
	part.last = true;
	if (r == 0)
		r = fault_point("migrate-file-sent", err);
	return r < 0 ? r : send_range(leaving, channel, fd, &part, err);
}

/* ---- one exchange ---- */

struct exchange {
	struct files_leaving *leaving;
	int channel;
	Pbeam__MigrateFile **again; /* to be asked for once more */
	size_t nagain;
};

static int take_answer(struct exchange *exchange, Pbeam__MigrateFile *file,
		       const Pbeam__MigrateFileFound *found, bool second, struct err *err)
{
	struct files_leaving *leaving = exchange->leaving;
	bool written = file->use & PBEAM__MIGRATE_FILE__USE__WRITTEN;

	switch (found->state) {
	case PBEAM__MIGRATE_FILE_FOUND__STATE__SAME:
		if (!written || is_same_file(file, found))
			return 0;
		file->apart = true;
		break;
	case PBEAM__MIGRATE_FILE_FOUND__STATE__DIGEST:
		if (leaving->options.dry_run) {
			auto_close int fd = open_file(leaving, file, err);

			return fd < 0 ? refuse(leaving, err->text, err) : 0;
		}
		break;
	case PBEAM__MIGRATE_FILE_FOUND__STATE__SEND:
		return send_contents(leaving, exchange->channel, file, err);
	case PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED:
		return carry(leaving, file);
	case PBEAM__MIGRATE_FILE_FOUND__STATE__REFUSED:
		return refuse(leaving, found->text, err);
	case _PBEAM__MIGRATE_FILE_FOUND__STATE_IS_INT_SIZE:
	default:
		return err_set(err, -EPROTO, "the other host says nothing sensible of %s", file->who);
	}
	if (second)
		return err_set(err, -EPROTO, "the other host asks for %s without end", file->who);
	exchange->again[exchange->nagain++] = file;
	return file->apart ? 0 : add_digest(leaving, file, err);
}

static int ask_all(struct exchange *exchange, Pbeam__MigrateFile **files, size_t n, bool second,
		   struct err *err)
{
	Pbeam__MigrateFilesFound *found;
	int r = ask(exchange->channel, files, n, &found, err);

	for (size_t i = 0; i < n && r == 0; i++)
		r = take_answer(exchange, files[i], found->files[i], second, err);
	if (r == 0)
		exchange->leaving->elsewhere |= found->elsewhere;
	message_free(found);
	return r;
}

int files_leaving_tell(struct files_leaving *leaving, int channel, const struct name_process *processes,
		       size_t n, uint64_t *bytes, struct err *err)
{
	struct exchange exchange = {.leaving = leaving, .channel = channel};
	auto_free Pbeam__MigrateFile **again = NULL;
	struct files_list list = {0};
	int r = list_new(leaving, processes, n, &list, err);

	leaving->began_ns = io_now_ns(CLOCK_MONOTONIC);
	leaving->sent = 0;
	if (r == 0 && list.n) {
		exchange.again = again = calloc(list.n, sizeof(*again));
		r = again ? ask_all(&exchange, list.v, list.n, false, err)
			  : err_code(err, -ENOMEM, "the files that go");
	}
	if (r == 0 && exchange.nagain)
		r = ask_all(&exchange, again, exchange.nagain, true, err);
	for (size_t i = 0; i < list.n && r == 0; i++) {
		r = message_append(&leaving->told.v, &leaving->told.n, &list.v[i]->base);
		list.v[i] = NULL;
	}
	files_list_free(&list);
	*bytes += leaving->sent;
	return r < 0 && !err->code ? err_code(err, r, "the files that go") : r;
}
