/*
 * The journal of a transaction: a magic number, the state, the length and digest of the message, the message.
 * The state is one byte, so that a change of it is on disk or not.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_copy.h"
#include "image/file_tree.h"
#include "image/file_undo_parts.h"
#include "image/hash.h"
#include "proto/message.h"

#define MAGIC  "PBEAMUN1"
#define SUFFIX ".journal"

enum { MESSAGE_MAX = 64 << 20, STAT_MAX = 4096, LOOK_NS = 1000000, WRITER_LOOKS = 3000 };

struct head {
	char magic[8];
	char state;
	char zero[7];
	uint64_t length, digest;
};

static int journal_dir(char dir[PATH_MAX], struct err *err)
{
	return dirs_state(dir, ".undo", err);
}

int file_journal_create(struct file_journal *journal, pid_t keeper, struct err *err)
{
	char dir[PATH_MAX];
	int r = journal_dir(dir, err);

	if (r < 0)
		return r;
	/* The journal of an earlier process with this number may still be here. */
	if (snprintf(journal->path, sizeof(journal->path), "%s/%d-%llx" SUFFIX, dir, (int)getpid(),
		     (unsigned long long)io_now_ns(CLOCK_REALTIME)) >= (int)sizeof(journal->path))
		return err_code(err, -ENAMETOOLONG, "%s", dir);
	journal->fd = open(journal->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (journal->fd < 0)
		return err_sys(err, "make %s, the journal of the files that change", journal->path);
	if (flock(journal->fd, LOCK_EX | LOCK_NB) < 0)
		return err_sys(err, "lock %s", journal->path);
	journal->message = message_new(&pbeam__undo_journal__descriptor);
	if (!journal->message)
		return err_code(err, -ENOMEM, "the journal of the files that change");
	journal->message->keeper = keeper;
	return 0;
}

int file_journal_write(struct file_journal *journal, struct err *err)
{
	struct head head = {.magic = MAGIC, .state = JOURNAL_PREPARING};
	size_t len = pbeam__undo_journal__get_packed_size(journal->message);
	auto_free uint8_t *packed = malloc(len + 1);
	int r;

	if (!packed)
		return err_code(err, -ENOMEM, "write %s", journal->path);
	pbeam__undo_journal__pack(journal->message, packed);
	head.length = len;
	head.digest = XXH3_64bits(packed, len);
	r = io_pwrite_full(journal->fd, packed, len, sizeof(head));
	if (r == 0)
		r = io_pwrite_full(journal->fd, &head, sizeof(head), 0);
	return r < 0 ? err_code(err, r, "write %s", journal->path) : 0;
}

int file_journal_set_state(struct file_journal *journal, enum journal_state state, struct err *err)
{
	const char byte = (char)state;
	int r = 0;

	if (state == JOURNAL_ARMED && fsync(journal->fd) < 0)
		return err_sys(err, "write %s to disk", journal->path);
	if (state == JOURNAL_ARMED)
		r = file_copy_sync_directory(journal->path);
	if (r == 0)
		r = io_pwrite_full(journal->fd, &byte, 1, offsetof(struct head, state));
	if (r == 0 && fdatasync(journal->fd) < 0)
		r = -errno;
	return r < 0 ? err_code(err, r, "write %s to disk", journal->path) : 0;
}

void file_journal_close(struct file_journal *journal)
{
	if (journal->fd >= 0)
		close(journal->fd);
	journal->fd = -1;
	message_free(journal->message);
	journal->message = NULL;
}

/* ---- carrying it out ---- */

static char *journal_text(const ProtobufCBinaryData *bytes)
{
	return bytes->len && !memchr(bytes->data, 0, bytes->len)
		       ? strndup((const char *)bytes->data, bytes->len)
		       : NULL;
}

static bool is_inode(const char *path, uint64_t ino)
{
	struct stat st;

	return path && stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == ino;
}

static int copy_back(const Pbeam__UndoFile *file, const char *copy, int fd)
{
	auto_close int from = copy ? open(copy, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
	int r = 0;

	if (copy && from < 0)
		return -EIO;
	for (size_t i = 0; i < file->n_ranges && r == 0; i++) {
		uint64_t start = file->ranges[i]->start, end = file->ranges[i]->end;

		if (end > file->size)
			end = file->size;
		if (start < end)
			r = from < 0 ? -EBADMSG : file_copy_range(from, fd, start, end);
	}
	return r;
}

/* Puts one file back. 0 or -errno. */
static int put_file_back(const Pbeam__UndoFile *file, const char *path, const char *copy)
{
	auto_close int fd = -1;
	int r;

	if (file->made) {
		if (is_inode(path, file->ino) && unlink(path) < 0)
			return -errno;
		return 0;
	}
	fd = file_change_open(path);
	if (fd < 0)
		return fd;
	if (!is_inode(path, file->ino))
		return -ESTALE;
	if (ftruncate(fd, (off_t)file->size) < 0)
		return -errno;
	r = copy_back(file, copy, fd);
	if (r < 0)
		return r;
	if (fchmod(fd, file->mode & 07777) < 0 && errno != EPERM)
		return -errno;
	r = file_change_set_times(fd, file->atime_ns, file->mtime_ns);
	return r == 0 && fsync(fd) < 0 && errno != EINVAL ? -errno : r;
}

/* False if it stays. */
static bool drop_copy(const Pbeam__UndoFile *file)
{
	auto_free char *copy = journal_text(&file->copy);

	if (!copy || unlink(copy) == 0 || errno == ENOENT)
		return true;
	log_warn("%s, a copy that is not needed any more, cannot be removed now: %s", copy, strerror(errno));
	return false;
}

static void set_attributes(const struct file_journal *journal, bool back)
{
	for (size_t i = 0; i < journal->message->n_attributes; i++) {
		int r = file_tree_set_attributes(journal->message->attributes[i], back);
		auto_free char *path = r < 0 ? journal_text(&journal->message->attributes[i]->path) : NULL;

		if (r < 0)
			log_warn("mode and time of %s cannot be set: %s", path, strerror(-r));
	}
}

static void set_earlier_attributes(const struct file_journal *journal)
{
	set_attributes(journal, true);
}

static void set_new_attributes(const struct file_journal *journal)
{
	set_attributes(journal, false);
}

/* The files are as they are to be: whoever finds the journal only removes copies. */
static void journal_set_done(struct file_journal *journal)
{
	struct err err = ERR_INIT;

	if (file_journal_set_state(journal, JOURNAL_DONE, &err) < 0)
		log_warn("%s", err.text);
}

/* Removes the copies, then, if `all` else is removed, the journal. What cannot be removed now is removed by
 * the next file_undo_recover(). `last` is done when the copies are removed, which changes the times of
 * directories. */
static void journal_remove(struct file_journal *journal, bool all,
			   void (*last)(const struct file_journal *journal))
{

	for (size_t i = 0; i < journal->message->n_files; i++)
		all &= drop_copy(journal->message->files[i]);
	for (size_t i = 0; i < journal->message->n_steps; i++)
		all &= file_tree_step_drop(journal->message->steps[i]);
	if (last)
		last(journal);
	if (!all) {
		journal_set_done(journal);
	} else if (unlink(journal->path) < 0 && errno != ENOENT) {
		log_warn("%s cannot be removed now: %s", journal->path, strerror(errno));
		journal_set_done(journal);
	}
	file_journal_close(journal);
}

void file_journal_drop(struct file_journal *journal)
{
	journal_remove(journal, true, set_earlier_attributes);
}

static void name_failure(const char *path, const char *copy, int r, struct err *err)
{
	size_t len = err ? strlen(err->text) : 0;

	log_error(
		"file %s could not be put back as it was (%s); %s has its earlier contents where they differ",
		path, strerror(-r), copy ? copy : "no file");
	if (err && len < sizeof(err->text))
		snprintf(err->text + len, sizeof(err->text) - len,
			 "; file %s could not be put back as it was: %s (its earlier contents are in %s)",
			 path, strerror(-r), copy ? copy : "no file");
}

/* Names of a directory tree. True if one could not be put back. */
static bool take_back_names(const struct file_journal *journal, struct err *err)
{
	bool failed = false;

	for (size_t i = journal->message->n_steps; i-- > 0;) {
		const Pbeam__UndoStep *step = journal->message->steps[i];
		auto_free char *path = journal_text(&step->path), *old = journal_text(&step->old);
		int r = file_tree_step_back(step);

		if (r < 0)
			name_failure(path ? path : "", old, r, err);
		failed |= r < 0;
	}
	return failed;
}

void file_journal_take_back(struct file_journal *journal, struct err *err)
{
	bool failed = take_back_names(journal, err);

	for (size_t i = journal->message->n_files; i-- > 0;) {
		const Pbeam__UndoFile *file = journal->message->files[i];
		auto_free char *path = journal_text(&file->path), *copy = journal_text(&file->copy);
		int r = path ? put_file_back(file, path, copy) : -EBADMSG;

		/* The file that had this inode is gone: there is nothing to put back. */
		if (r == -ESTALE || r == -ENOENT) {
			log_warn("file %s was replaced meanwhile and is left alone", path);
			r = 0;
		}
		if (r < 0)
			name_failure(path ? path : "", copy, r, err);
		failed |= r < 0;
	}
	if (failed) {
		file_journal_close(journal);
		return;
	}
	journal_set_done(journal);
	file_journal_drop(journal);
}

static void finish_file(const Pbeam__UndoFile *file)
{
	auto_free char *path = journal_text(&file->path);
	auto_close int fd = file->cut && is_inode(path, file->ino) ? file_change_open(path) : -1;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size != file->size)
		return; /* nothing to cut, or done already and written to since */
	if (ftruncate(fd, (off_t)file->length) < 0 || file_change_set_times(fd, 0, file->new_mtime_ns) < 0 ||
	    (fsync(fd) < 0 && errno != EINVAL))
		log_error("file %s cannot be cut to its length of %llu bytes: %s", path,
			  (unsigned long long)file->length, strerror(errno));
}

void file_journal_finish(struct file_journal *journal)
{
	bool all = true;

	for (size_t i = 0; i < journal->message->n_files; i++)
		finish_file(journal->message->files[i]);
	for (size_t i = 0; i < journal->message->n_steps; i++)
		all &= file_tree_step_finish(journal->message->steps[i]);
	journal_remove(journal, all, set_new_attributes);
}

/* Files that could not be removed when they were not needed any more. */
static void journal_clean(struct file_journal *journal)
{
	bool all = true;

	for (size_t i = 0; i < journal->message->n_steps; i++)
		all &= file_tree_step_finish(journal->message->steps[i]);
	journal_remove(journal, all, NULL);
}

/* ---- after a kill ---- */

/* Reads the message of a journal. Returns the journal's state, or -errno: -EBADMSG if it was never completed,
 * -EUCLEAN if it is damaged. */
static int journal_read(struct file_journal *journal)
{
	auto_free uint8_t *packed = NULL;
	struct head head;
	ssize_t n = io_pread_full(journal->fd, &head, sizeof(head), 0);

	if (n < 0)
		return (int)n;
	if (n != sizeof(head) || memcmp(head.magic, MAGIC, sizeof(head.magic)) != 0 ||
	    head.length > MESSAGE_MAX)
		return -EBADMSG;
	packed = malloc(head.length + 1);
	if (!packed)
		return -ENOMEM;
	n = io_pread_full(journal->fd, packed, head.length, sizeof(head));
	if (n < 0)
		return (int)n;
	if (n != (ssize_t)head.length || XXH3_64bits(packed, head.length) != head.digest)
		return head.state == JOURNAL_PREPARING ? -EBADMSG : -EUCLEAN;
	journal->message = pbeam__undo_journal__unpack(NULL, head.length, packed);
	for (size_t i = 0; journal->message && i < journal->message->n_steps; i++)
		if (!file_tree_step_is_valid(journal->message->steps[i]))
			return -EUCLEAN;
	return journal->message ? head.state : -EBADMSG;
}

/* True if the keeper runs, or a process that has got its number since, which then delays the decision, or if
 * that cannot be found out. */
static bool keeper_runs(pid_t keeper)
{
	auto_free char *text = NULL;
	const char *name, *state;
	char path[40];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)keeper);
	r = keeper > 1 ? io_slurp(AT_FDCWD, path, STAT_MAX, &text, NULL) : -ESRCH;
	if (r < 0)
		return r != -ENOENT && r != -ESRCH;
	name = strchr(text, '(');
	state = strrchr(text, ')');
	return name && state && !strncmp(name, "(scip-keeper", 12) && state[1] == ' ' && state[2] != 'Z' &&
	       state[2] != 'X';
}

/* The writer of a journal ends with its keeper, but not at the same moment. True if it may have. */
static bool await_writer(struct file_journal *journal)
{
	const struct timespec step = {.tv_nsec = LOOK_NS};
	int state = journal_read(journal);
	bool runs = state < 0 || keeper_runs(journal->message->keeper);

	message_free(journal->message);
	journal->message = NULL;
	for (int i = 0; i < WRITER_LOOKS && !runs; i++) {
		if (flock(journal->fd, LOCK_EX | LOCK_NB) == 0)
			return true;
		nanosleep(&step, NULL);
	}
	return false;
}

/* Opens and locks a journal. Returns its state, 0 if it is in use or gone, or -errno. */
static int open_left(struct file_journal *journal)
{
	journal->fd = open(journal->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (journal->fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (flock(journal->fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return -errno;
		if (!await_writer(journal))
			return 0;
	}
	if (access(journal->path, F_OK) < 0)
		return errno == ENOENT ? 0 : -errno; /* its owner has just finished */
	return journal_read(journal);
}

/* `decider`: its held journals are decided; 0: all journals but held ones with a living keeper. Returns
 * -errno if the journal cannot be read now. */
static int journal_carry_out(struct file_journal *journal, pid_t decider, bool committed, struct err *err)
{
	int state = open_left(journal), r = 0;

	if (state > 0 && decider && (state != JOURNAL_HELD || journal->message->keeper != decider))
		state = 0;
	else if (state == JOURNAL_HELD && !decider && keeper_runs(journal->message->keeper))
		state = 0;
	if (state == JOURNAL_SETTLED || (state == JOURNAL_HELD && decider && committed)) {
		file_journal_finish(journal);
	} else if (state == JOURNAL_ARMED || state == JOURNAL_HELD) {
		log_warn("a restore was killed while it changed files; they are put back");
		file_journal_take_back(journal, NULL);
	} else if (state == JOURNAL_PREPARING) {
		file_journal_drop(journal);
	} else if (state == JOURNAL_DONE) {
		journal_clean(journal);
	} else if (state == -EBADMSG) { /* killed, or without power, before any file was touched */
		log_info("%s was never completed; it is removed", journal->path);
		unlink(journal->path);
	} else if (state == -EUCLEAN) {
		log_warn("%s is damaged and is left alone", journal->path);
	} else if (state < 0) {
		r = err_code(err, state, "read %s, the journal of an earlier restore", journal->path);
	}
	file_journal_close(journal);
	return r;
}

static bool journal_path(const char *dir, const char *name, struct file_journal *journal)
{
	size_t len = strlen(name), suffix = sizeof(SUFFIX) - 1;

	return len > suffix && strcmp(name + len - suffix, SUFFIX) == 0 &&
	       snprintf(journal->path, sizeof(journal->path), "%s/%s", dir, name) <
		       (int)sizeof(journal->path);
}

static int each_journal(pid_t decider, bool committed, struct err *err)
{
	char dir[PATH_MAX];
	auto_closedir DIR *list = NULL;
	const struct dirent *entry = NULL;
	int r = journal_dir(dir, err);

	if (r < 0)
		return r;
	list = opendir(dir);
	if (!list)
		return errno == ENOENT ? 0 : err_sys(err, "list %s, the journals of earlier restores", dir);
	do {
		struct file_journal journal = {.fd = -1};
		int one;

		errno = 0;
		entry = readdir(list);
		if (!entry || !journal_path(dir, entry->d_name, &journal))
			continue;
		one = journal_carry_out(&journal, decider, committed, r == 0 ? err : NULL);
		if (r == 0)
			r = one;
	} while (entry);
	return r == 0 && errno ? err_sys(err, "list %s, the journals of earlier restores", dir) : r;
}

int file_undo_recover(struct err *err)
{
	return each_journal(0, false, err);
}

void file_undo_decide(pid_t keeper, bool committed)
{
	struct err err = ERR_INIT;

	if (each_journal(keeper, committed, &err) < 0)
		log_error("%s", err.text);
}
