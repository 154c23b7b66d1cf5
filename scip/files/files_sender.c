/*
 * Announces files to the target. One exchange has at most two requests: one for the new files, and one with
 * digests for the files that the target could not recognize by their numbers; then the contents that the
 * target asks for are sent.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "channel/wire.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/files/files.h"

#define NS_PER_S 1000000000ull

enum { LINKS_MAX = 32 };

/* A file whose contents the image must hold. */
struct carried {
	uint64_t ino;
};

struct files_sender {
	struct files_options options;
	struct files_store store;
	struct paths paths;	     /* of the job on this host */
	struct files_list announced; /* and answered */
	struct carried *carried;
	size_t ncarried;
	bool other_paths;
	uint64_t began_ns, sent; /* of this exchange */
};

int files_sender_new(struct files_sender **out, const struct files_options *options, struct err *err)
{
	struct files_sender *sender = calloc(1, sizeof(*sender));
	struct name_job job;
	int r;

	*out = sender;
	if (!sender)
		return err_code(err, -ENOMEM, "the outgoing files");
	sender->options = *options;
	r = paths_load(&sender->paths, options->keeper);
	if (r == 0)
		r = names_job_get(options->names, options->keeper, &job);
	if (r < 0)
		return err_code(err, r, "the paths of the job");
	return sender->paths.n ? files_store_open(&sender->store, options->own_host, job.uuid, err) : 0;
}

void files_sender_free(struct files_sender *sender)
{
	if (!sender)
		return;
	files_list_free(&sender->announced);
	paths_free(&sender->paths);
	free(sender->carried);
	free(sender);
}

bool files_sender_has_other_paths(const struct files_sender *sender)
{
	return sender->other_paths;
}

uint64_t files_sender_limit(const struct files_sender *sender, const struct stat *st, uint64_t max)
{
	for (size_t i = 0; i < sender->ncarried; i++)
		if (sender->carried[i].ino == st->st_ino)
			return UINT64_MAX;
	for (size_t i = 0; i < sender->announced.n; i++)
		if (sender->announced.v[i]->ino == st->st_ino)
			return 0; /* the target has the same file */
	return max;
}

void files_sender_departed(const struct files_sender *sender)
{
	for (size_t i = 0; i < sender->paths.n; i++)
		if (sender->paths.v[i].kind == PATH_WRITTEN)
			files_store_drop(&sender->store, sender->paths.v[i].real);
}

static const Pbeam__MigrateFile *find_announced(const struct files_sender *sender,
						const Pbeam__MigrateFile *file)
{
	for (size_t i = 0; i < sender->announced.n; i++) {
		const Pbeam__MigrateFile *known = sender->announced.v[i];

		if (known->path.len == file->path.len &&
		    bytes_equal(known->path.data, file->path.data, file->path.len) &&
		    known->ino == file->ino && (file->use & ~known->use) == 0)
			return known;
	}
	return NULL;
}

/* Lists the files of these processes that have not been announced. */
static int list_new(struct files_sender *sender, const struct name_process *processes, size_t n,
		    struct files_list *list, struct err *err)
{
	size_t kept = 0;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = files_list_add(list, &processes[i], &sender->paths, err);
	for (size_t i = 0; i < list->n; i++) {
		if (find_announced(sender, list->v[i]))
			message_free(list->v[i]);
		else
			list->v[kept++] = list->v[i];
	}
	list->n = kept;
	return r;
}

/* ---- requests ---- */

static int request_answers(int channel, Pbeam__MigrateFile **files, size_t n,
			   Pbeam__MigrateFilesFound **found, struct err *err)
{
	Pbeam__MigrateFiles message = PBEAM__MIGRATE_FILES__INIT;
	int r;

	message.n_files = n;
	message.files = files;
	*found = NULL;
	r = wire_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES, &message.base, err);
	if (r == 0)
		r = wire_take(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES_FOUND,
			      &pbeam__migrate_files_found__descriptor, found, err);
	if (r == 0 && (*found)->n_files != n) {
		r = err_set(err, -EPROTO, "malformed reply: %zu answers for %zu files", (*found)->n_files, n);
		message_free(*found);
		*found = NULL;
	}
	return r;
}

/* Opens a file by its path on this host, which may differ from its name. */
static int open_announced(const struct files_sender *sender, const Pbeam__MigrateFile *file, struct err *err)
{
	auto_free char *path = files_text(&file->path);
	struct stat st;
	int fd = path ? open(files_contents(&sender->paths, path),
			     O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)
		      : -ENOMEM;

	if (fd < 0)
		return err_sys(err, "%s is %s, which you may not read, so it cannot be sent; use --map",
			       file->who, path);
	if (fstat(fd, &st) == 0 && st.st_ino == file->ino && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return err_set(err, -ESTALE, "%s is %s, which has just been replaced; try again", file->who, path);
}

/* Finds the symbolic links in the file's directory that lead to it: a library's other names. */
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

static int add_digest(const struct files_sender *sender, Pbeam__MigrateFile *file, struct err *err)
{
	uint8_t digest[IMAGE_DIGEST];
	auto_close int fd = open_announced(sender, file, err);
	int r = fd;

	if (r >= 0)
		r = files_digest(fd, file->size, digest);
	if (r == 0)
		r = message_bytes(&file->digest, digest, sizeof(digest));
	if (r == 0)
		r = find_links(file);
	return r < 0 && !(err && err->code) ? err_code(err, r, "read %s", file->path.data) : r;
}

/* True if the target sees the same file: its times there lie between those that were seen here before and
 * those that are seen now. */
static bool is_same_file(const Pbeam__MigrateFile *file, const Pbeam__MigrateFileFound *found)
{
	auto_free char *path = files_text(&file->path);
	struct stat st;

	return path && stat(path, &st) == 0 && st.st_ino == file->ino && found->mtime_ns >= file->mtime_ns &&
	       found->mtime_ns <= files_mtime_ns(&st) && found->ctime_ns >= file->ctime_ns &&
	       found->ctime_ns <= files_ctime_ns(&st);
}

static int report_refusal(struct files_sender *sender, const char *text, struct err *err)
{
	if (!sender->options.dry_run)
		return err_set(err, -ENOENT, "%s", text);
	sender->options.obstacle(sender->options.obstacle_arg, text);
	return 0;
}

static int carry_file(struct files_sender *sender, const Pbeam__MigrateFile *file)
{
	struct carried *more = reallocarray(sender->carried, sender->ncarried + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	sender->carried = more;
	more[sender->ncarried++].ino = file->ino;
	return 0;
}

/* ---- contents ---- */

static void limit_file_rate(const struct files_sender *sender)
{
	uint64_t spent = io_now_ns(CLOCK_MONOTONIC) - sender->began_ns, due;

	if (!sender->options.bandwidth)
		return;
	due = (uint64_t)((double)sender->sent / (double)sender->options.bandwidth * NS_PER_S);
	if (due > spent)
		nanosleep(&(struct timespec){(time_t)((due - spent) / NS_PER_S),
					     (long)((due - spent) % NS_PER_S)},
			  NULL);
}

static int send_range(struct files_sender *sender, int channel, int fd, const Pbeam__MigrateFilePart *part,
		      struct err *err)
{
	int r = wire_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_FILE, &part->base, err);

	if (r == 0)
		r = wire_send_range(channel, fd, part->offset, part->bytes, "a file", err);
	sender->sent += part->bytes;
	limit_file_rate(sender);
	return r;
}

/* Sends the file's data without its holes. */
static int send_contents(struct files_sender *sender, int channel, const Pbeam__MigrateFile *file,
			 struct err *err)
{
	Pbeam__MigrateFilePart part = PBEAM__MIGRATE_FILE_PART__INIT;
	auto_close int fd = open_announced(sender, file, err);
	uint64_t at = 0;
	int r = fd < 0 ? fd : 0;

	part.digest = file->digest;
	part.size = file->size;
	part.mode = file->mode;
	while (r == 0 && at < file->size) {
		off_t data = lseek(fd, (off_t)at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			break;
		data = data < 0 ? (off_t)at : data; /* the file system does not support SEEK_DATA */
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0 || (uint64_t)hole > file->size)
			hole = (off_t)file->size;
		for (at = (uint64_t)data; r == 0 && at < (uint64_t)hole; at += part.bytes) {
			uint64_t left = (uint64_t)hole - at;

			part.offset = at;
			part.bytes = left < WIRE_PART_MAX ? left : WIRE_PART_MAX;
			r = send_range(sender, channel, fd, &part, err);
		}
	}
	part.offset = part.bytes = 0;
	part.last = true;
	if (r == 0)
		r = fault_point("migrate-file-sent", err);
	return r < 0 ? r : send_range(sender, channel, fd, &part, err);
}

/* ---- one exchange ---- */

struct exchange {
	struct files_sender *sender;
	int channel;
	Pbeam__MigrateFile **again; /* for the second request */
	size_t nagain;
};

static int handle_answer(struct exchange *exchange, Pbeam__MigrateFile *file,
			 const Pbeam__MigrateFileFound *found, bool second, struct err *err)
{
	struct files_sender *sender = exchange->sender;
	bool written = file->use & PBEAM__MIGRATE_FILE__USE__WRITTEN;

	switch (found->state) {
	case PBEAM__MIGRATE_FILE_FOUND__STATE__SAME:
		if (!written || is_same_file(file, found))
			return 0;
		file->apart = true;
		break;
	case PBEAM__MIGRATE_FILE_FOUND__STATE__DIGEST:
		if (sender->options.dry_run) {
			auto_close int fd = open_announced(sender, file, err);

			return fd < 0 ? report_refusal(sender, err->text, err) : 0;
		}
		break;
	case PBEAM__MIGRATE_FILE_FOUND__STATE__SEND:
		return send_contents(sender, exchange->channel, file, err);
	case PBEAM__MIGRATE_FILE_FOUND__STATE__CARRIED:
		return carry_file(sender, file);
	case PBEAM__MIGRATE_FILE_FOUND__STATE__REFUSED:
		return report_refusal(sender, found->text, err);
	case _PBEAM__MIGRATE_FILE_FOUND__STATE_IS_INT_SIZE:
	default:
		return err_set(err, -EPROTO, "malformed answer for %s", file->who);
	}
	if (second)
		return err_set(err, -EPROTO, "repeated request for %s", file->who);
	exchange->again[exchange->nagain++] = file;
	return file->apart ? 0 : add_digest(sender, file, err);
}

static int announce_list(struct exchange *exchange, Pbeam__MigrateFile **files, size_t n, bool second,
			 struct err *err)
{
	Pbeam__MigrateFilesFound *found;
	int r = request_answers(exchange->channel, files, n, &found, err);

	for (size_t i = 0; i < n && r == 0; i++)
		r = handle_answer(exchange, files[i], found->files[i], second, err);
	if (r == 0)
		exchange->sender->other_paths |= found->elsewhere;
	message_free(found);
	return r;
}

int files_sender_announce(struct files_sender *sender, int channel, const struct name_process *processes,
			  size_t n, uint64_t *bytes, struct err *err)
{
	struct exchange exchange = {.sender = sender, .channel = channel};
	auto_free Pbeam__MigrateFile **again = NULL;
	struct files_list list = {0};
	int r = list_new(sender, processes, n, &list, err);

	sender->began_ns = io_now_ns(CLOCK_MONOTONIC);
	sender->sent = 0;
	if (r == 0 && list.n) {
		exchange.again = again = calloc(list.n, sizeof(*again));
		r = again ? announce_list(&exchange, list.v, list.n, false, err)
			  : err_code(err, -ENOMEM, "the outgoing files");
	}
	if (r == 0 && exchange.nagain)
		r = announce_list(&exchange, again, exchange.nagain, true, err);
	for (size_t i = 0; i < list.n && r == 0; i++) {
		r = message_append(&sender->announced.v, &sender->announced.n, &list.v[i]->base);
		list.v[i] = NULL;
	}
	files_list_free(&list);
	*bytes += sender->sent;
	return r < 0 && !(err && err->code) ? err_code(err, r, "the outgoing files") : r;
}
