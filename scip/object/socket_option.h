/* Socket options that may fail without harm. */
#ifndef SCIP_OBJECT_SOCKET_OPTION_H
#define SCIP_OBJECT_SOCKET_OPTION_H

#include <sys/socket.h>

/* Sets an int option; the socket keeps its value if the kernel refuses. */
static inline void socket_set_option(int fd, int level, int name, int value)
{
	(void)!setsockopt(fd, level, name, &value, sizeof(value));
}

#endif
