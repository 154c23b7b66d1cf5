/* inotify keeps its watches under their numbers. Unread events make a checkpoint fail: they cannot be
 * restored. */
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "tests/cases/case.h"

static int make(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);

	return fd < 0 ? -1 : close(fd);
}

int main(void)
{
	char buf[4096] __attribute__((aligned(8)));
	const struct inotify_event *event = (const struct inotify_event *)(const void *)buf;

	CHECK(mkdir("watched", 0700) == 0 && mkdir("other", 0700) == 0);
	int fd = inotify_init1(IN_NONBLOCK);
	int gone = inotify_add_watch(fd, "other", IN_CREATE);
	int watch = inotify_add_watch(fd, "watched", IN_CREATE | IN_DELETE);
	CHECK(fd >= 0 && gone > 0 && watch > 0 && inotify_rm_watch(fd, gone) == 0);
	CHECK(read(fd, buf, sizeof(buf)) > 0);
	CHECK(make("watched/before") == 0);
	CHECK(read(fd, buf, sizeof(buf)) > 0 && event->wd == watch && event->mask == IN_CREATE &&
	      strcmp(event->name, "before") == 0);

	case_wait();
	CHECK(read(fd, buf, sizeof(buf)) == -1 && errno == EAGAIN);
	CHECK(unlink("watched/before") == 0);
	CHECK(read(fd, buf, sizeof(buf)) > 0 && event->wd == watch && event->mask == IN_DELETE &&
	      strcmp(event->name, "before") == 0);
	CHECK(make("other/unseen") == 0 && read(fd, buf, sizeof(buf)) == -1 && errno == EAGAIN);
	CHECK(inotify_rm_watch(fd, watch) == 0);
	CHECK(unlink("other/unseen") == 0 && rmdir("watched") == 0 && rmdir("other") == 0);
	case_pass();
}
