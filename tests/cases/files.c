/* Unlinked files with contents, directories that are being read, devices, O_PATH, an appended file, holes. */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>

#include "tests/cases/case.h"

int main(void)
{
	char name[64], back[64] = "";
	struct stat st;
	struct dirent *entry;
	int seen = 0;

	int unlinked = open("unlinked", O_RDWR | O_CREAT | O_EXCL, 0640);
	CHECK(write(unlinked, "nobody sees this", 16) == 16 && pwrite(unlinked, "far", 3, 1 << 20) == 3);
	CHECK(unlink("unlinked") == 0 && lseek(unlinked, 7, SEEK_SET) == 7);
	int twin = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600), log = open("log", O_RDONLY);
	CHECK(write(twin, "before\n", 7) == 7 && read(log, back, 3) == 3);
	CHECK(mkdir("dir", 0700) == 0);
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "dir/entry%d", i);
		CHECK(close(open(name, O_WRONLY | O_CREAT, 0600)) == 0);
	}
	DIR *dir = opendir("dir");
	while (seen < 40 && (entry = readdir(dir)) != NULL)
		seen += entry->d_name[0] == 'e';
	int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY),
	    random = open("/dev/urandom", O_RDONLY);
	int path = open("dir", O_PATH | O_DIRECTORY), at = open("dir", O_RDONLY | O_DIRECTORY);
	CHECK(null >= 0 && zero >= 0 && random >= 0 && path >= 0 && at >= 0 && dir != NULL);

	case_wait();
	CHECK(read(unlinked, back, sizeof(back)) == sizeof(back) && memcmp(back, "sees this", 9) == 0);
	CHECK(fstat(unlinked, &st) == 0 && st.st_nlink == 0 && st.st_size == (1 << 20) + 3 &&
	      (st.st_mode & 0777) == 0640);
	CHECK(pread(unlinked, back, 4, 1 << 20) == 3 && memcmp(back, "far", 3) == 0 && st.st_blocks < 2048);
	CHECK(read(log, back, sizeof(back)) == 4 && memcmp(back, "ore\n", 4) == 0);
	CHECK(write(twin, "after\n", 6) == 6 && read(log, back, sizeof(back)) == 6 &&
	      memcmp(back, "after\n", 6) == 0);
	while ((entry = readdir(dir)) != NULL)
		seen += entry->d_name[0] == 'e';
	CHECK(seen == 100);
	CHECK(read(null, back, 1) == 0 && write(null, "x", 1) == 1 && read(zero, back, 4) == 4 &&
	      back[0] == 0 && read(random, back, 4) == 4);
	CHECK(fstatat(path, "entry5", &st, 0) == 0 && faccessat(at, "entry6", F_OK, 0) == 0);
	CHECK(fcntl(path, F_GETFL) & O_PATH);
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "entry%d", i);
		CHECK(unlinkat(at, name, 0) == 0);
	}
	CHECK(rmdir("dir") == 0 && unlink("log") == 0);
	case_pass();
}
