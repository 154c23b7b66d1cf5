/* The errors of an NFS server are believed. The functions of libc are replaced here: no server is needed. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "scip/files/files.h"
#include "tests/unit/unit.h"

#define NFS_MAGIC 0x6969

static int sync_errno, close_errno, synced = -1;

int statfs(const char *path, struct statfs *out)
{
	(void)path;
	memset(out, 0, sizeof(*out));
	out->f_type = NFS_MAGIC;
	return 0;
}

int fdatasync(int fd)
{
	synced = fd;
	errno = sync_errno;
	return sync_errno ? -1 : 0;
}

int close(int fd)
{
	const bool fails = fd == synced && close_errno;

	if (fd == synced)
		synced = -1;
	syscall(SYS_close, fd);
	errno = fails ? close_errno : errno;
	return fails ? -1 : 0;
}

static int list_own_files(struct err *err)
{
	const struct name_process self = {.vpid = {7}, .rpid = {getpid()}};
	const struct paths paths = {0};
	struct files_list list = {0};
	int r = files_list_add(&list, &self, &paths, err);

	files_list_free(&list);
	return r;
}

static void test_flush(void **state)
{
	char path[] = "/tmp/pbeam-files-list-XXXXXX";
	const int fd = mkstemp(path);
	struct err err = ERR_INIT;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(list_own_files(&err), 0);
	sync_errno = EIO;
	assert_int_equal(list_own_files(&err), -EIO);
	assert_non_null(strstr(err.text, "vpid 7 (files_list_test"));
	assert_non_null(strstr(err.text, "to its NFS server: Input/output error"));
	sync_errno = 0;
	close_errno = ENOSPC;
	err = (struct err)ERR_INIT;
	assert_int_equal(list_own_files(&err), -ENOSPC);
	close_errno = 0;
	/* A file that became read-only since it was opened. */
	assert_int_equal(fchmod(fd, 0400), 0);
	assert_int_equal(list_own_files(&err), 0);
	close(fd);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_flush)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
