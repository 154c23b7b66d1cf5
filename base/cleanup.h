/* Cleanup attributes for locals. steal_fd() and steal_ptr() return a local and disable its cleanup. */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void cleanup_closedir(DIR **d)
{
	if (*d)
		closedir(*d);
}

#define auto_close    __attribute__((cleanup(cleanup_close)))
#define auto_free     __attribute__((cleanup(cleanup_free)))
#define auto_fclose   __attribute__((cleanup(cleanup_fclose)))
#define auto_closedir __attribute__((cleanup(cleanup_closedir)))

static inline int steal_fd(int *fd)
{
	int n = *fd;

	*fd = -1;
	return n;
}

#define steal_ptr(p)                                                                                         \
	({                                                                                                   \
		__typeof__(*(p)) steal_tmp = *(p);                                                           \
		*(p) = NULL;                                                                                 \
		steal_tmp;                                                                                   \
	})

#endif
