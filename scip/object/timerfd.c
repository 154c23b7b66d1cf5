/*
 * timerfd: clock, time left, interval, and unread expirations, all in fdinfo.
 *
 * A periodic timer that has expired stands still until it is read or queried: timerfd_gettime() first brings
 * it up to date (the kernel then counts the intervals that passed), which the program cannot tell. The time
 * left is restored, as for all timers; only an absolute timer of the wall clock keeps its time of day.
 * TFD_IOC_SET_TICKS needs CONFIG_CHECKPOINT_RESTORE.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/object/common.h"
#include "scip/object/object_table.h"

#define NS	  1000000000u
/* <linux/timerfd.h> does not go together with <fcntl.h>. */
#define SET_TICKS _IOW('T', 0, uint64_t)

static bool timerfd_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:[timerfd]") == 0;
}

static bool wall_clock(const Pbeam__TimerFd *timer)
{
	return timer->settime_flags & TFD_TIMER_ABSTIME &&
	       (timer->clock == CLOCK_REALTIME || timer->clock == CLOCK_REALTIME_ALARM);
}

static int timerfd_parse_fdinfo(const char *fdinfo, Pbeam__TimerFd *out)
{
	const char *value = strstr(fdinfo, "it_value:"), *interval = strstr(fdinfo, "it_interval:");
	unsigned long long s, ns;

	if (!value || !interval || sscanf(value, "it_value: (%llu, %llu)", &s, &ns) != 2)
		return -EPROTO;
	out->value_ns = s * NS + ns;
	if (sscanf(interval, "it_interval: (%llu, %llu)", &s, &ns) != 2)
		return -EPROTO;
	out->interval_ns = s * NS + ns;
	out->clock = (int32_t)object_fdinfo_number(fdinfo, "clockid", 10, 0);
	out->ticks = object_fdinfo_number(fdinfo, "ticks", 10, 0);
	out->settime_flags = (int32_t)object_fdinfo_number(fdinfo, "settime flags", 8, 0);
	return 0;
}

static int timerfd_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			struct err *err)
{
	struct itimerspec now;
	auto_free char *fdinfo = NULL;
	char path[64];
	int r;

	out->timerfd = object_message(Pbeam__TimerFd, pbeam__timer_fd__init);
	if (!out->timerfd)
		return object_no_memory(err);
	if (syscall(SYS_timerfd_gettime, source->local, &now) < 0)
		return err_sys(err, "a timerfd that cannot be read");
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", source->local);
	r = io_slurp(AT_FDCWD, path, 65536, &fdinfo, NULL);
	if (r == 0)
		r = timerfd_parse_fdinfo(fdinfo, out->timerfd);
	if (r < 0)
		return err_code(err, r, "a timerfd whose fdinfo is not understood");
	if (wall_clock(out->timerfd) && out->timerfd->value_ns)
		out->timerfd->value_ns += io_now_ns(CLOCK_REALTIME);
	return 0;
}

static struct timespec to_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / NS), .tv_nsec = (long)(ns % NS)};
}

static int timerfd_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	const Pbeam__TimerFd *saved = object->timerfd;
	struct itimerspec when = {.it_interval = to_timespec(saved->interval_ns),
				  .it_value = to_timespec(saved->value_ns)};
	uint64_t ticks = saved->ticks;
	int flags = wall_clock(saved) ? saved->settime_flags : 0;

	*fd = (int)syscall(SYS_timerfd_create, saved->clock, O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0)
		return err_sys(err, "make a timerfd of clock %d", saved->clock);
	/* A periodic one that was just due has nothing left and yet goes on. */
	if (saved->value_ns == 0 && saved->interval_ns)
		when.it_value.tv_nsec = 1;
	if ((saved->value_ns || saved->interval_ns) &&
	    syscall(SYS_timerfd_settime, *fd, flags, &when, NULL) < 0)
		return err_sys(err, "set a timerfd");
	if (ticks && ioctl(*fd, SET_TICKS, &ticks) < 0)
		return err_sys(err, "set a timerfd's expirations");
	return 0;
}

const struct object_ops object_timerfd = {
	.name = "timerfd",
	.kind = PBEAM__OBJECT__KIND_TIMERFD,
	.phase = 1,
	/* Its time runs as soon as it is made, so it is made as late as possible. */
	.late = true,
	.match = timerfd_match,
	.dump = timerfd_dump,
	.restore = timerfd_restore,
	.shift = object_shift_none,
};
