/* Whole reads and writes, small files, directories, connect() with a time-out. All retry EINTR and short
 * counts. */
#ifndef BASE_IO_H
#define BASE_IO_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/err.h"

/* Reads until `len` bytes or end of file. Returns the bytes read or -errno. */
must_check ssize_t io_read_full(int fd, void *buf, size_t len);
must_check ssize_t io_pread_full(int fd, void *buf, size_t len, off_t off);

/* Writes all of `len` bytes. Returns 0 or -errno. */
must_check int io_write_full(int fd, const void *buf, size_t len);
must_check int io_pwrite_full(int fd, const void *buf, size_t len, off_t off);

/* Makes a random UUID, as text. */
must_check int io_make_uuid(char uuid[40]);

/* Reads a whole (proc) file into a malloc'd, NUL-terminated buffer that the caller frees; *len (may be NULL)
 * is its length. Files above `max` bytes give -EFBIG. */
must_check int io_slurp(int dirfd, const char *path, size_t max, char **out, size_t *len);

/* Reads a symbolic link, whole, NUL-terminated. -ENAMETOOLONG if it does not fit. */
must_check int io_readlink(int dirfd, const char *path, char *buf, size_t size);

/* readdir(3), of which a failure is easily taken for the end. Returns 1 with an entry, 0 at the end, or
 * -errno.
 */
must_check int io_next_entry(DIR *dir, const struct dirent **entry);

/* mkdir -p with mode 0700 for what is made. */
must_check int io_mkdirs(const char *path, struct err *err);

/* connect(2) for at most `timeout_ms`, whether or not the socket blocks; its flags stay as they are. Returns
 * 0, -ETIMEDOUT, or another -errno. After an error the socket is of no further use. */
must_check int io_connect(int sock, const struct sockaddr *to, socklen_t len, int timeout_ms);

/* Raises the soft limit of descriptors to the hard one, if that is possible. Programs that use select(2),
 * which the soft limit is for, must not inherit it. */
void io_raise_descriptor_limit(void);

struct msghdr;
/* sendmsg(2) and send(2), tried again after EINTR, and for a second while the kernel lacks memory (ENOMEM,
 * ENOBUFS): a message that is given up for that would look as if its sender had ended. The count or -errno.
 */
must_check ssize_t io_sendmsg(int sock, const struct msghdr *message, int flags);
must_check ssize_t io_send(int sock, const void *buf, size_t len, int flags);

struct timespec;
/* Seconds and nanoseconds as one number: of the clock now, and of a time after 1970. */
uint64_t io_now_ns(int clock_id);
uint64_t io_time_ns(const struct timespec *time);

#endif
