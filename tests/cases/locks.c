/* POSIX, open-file-description and flock locks are restored, each with its owner, and released as before. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

/* Tests the byte from another process: returns the type of the conflicting lock, its owner in *pid. */
static int seen_by_child(const char *path, off_t at, pid_t *pid)
{
	int channel[2];
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	CHECK(pipe(channel) == 0);
	pid_t child = fork();
	if (child == 0) {
		int fd = open(path, O_RDWR);
		_exit(fd < 0 || fcntl(fd, F_GETLK, &lock) < 0 || write(channel[1], &lock, sizeof(lock)) < 0);
	}
	CHECK(read(channel[0], &lock, sizeof(lock)) == sizeof(lock) && waitpid(child, NULL, 0) == child);
	close(channel[0]);
	close(channel[1]);
	*pid = lock.l_pid;
	return lock.l_type;
}

int main(void)
{
	struct flock read_lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
	struct flock write_lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 0};
	struct flock own = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 50, .l_len = 5};
	int fd = open("locked", O_RDWR | O_CREAT, 0600), ofd = open("locked", O_RDWR),
	    whole = open("flocked", O_RDWR | O_CREAT, 0600);
	pid_t owner;

	CHECK(fd >= 0 && ofd >= 0 && whole >= 0);
	CHECK(fcntl(fd, F_SETLK, &read_lock) == 0 && fcntl(fd, F_SETLK, &write_lock) == 0 &&
	      fcntl(ofd, F_OFD_SETLK, &own) == 0);
	CHECK(flock(whole, LOCK_EX) == 0);

	case_wait();
	CHECK(seen_by_child("locked", 15, &owner) == F_RDLCK && owner == getpid());
	CHECK(seen_by_child("locked", 99, &owner) == F_UNLCK);
	CHECK(seen_by_child("locked", 1000000, &owner) == F_WRLCK && owner == getpid());
	CHECK(seen_by_child("locked", 52, &owner) == F_WRLCK && owner == -1);
	int other = open("flocked", O_RDWR);
	CHECK(flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK);
	CHECK(flock(whole, LOCK_UN) == 0 && flock(other, LOCK_SH | LOCK_NB) == 0);
	CHECK(close(ofd) == 0); /* releases the POSIX locks of this process too */
	CHECK(seen_by_child("locked", 15, &owner) == F_UNLCK);
	CHECK(unlink("locked") == 0 && unlink("flocked") == 0);
	case_pass();
}
