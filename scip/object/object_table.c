/* The kinds, in the order in which they are asked whether a description is theirs. */
#include "scip/object/object_table.h"

#include <stddef.h>

const struct object_ops *const object_table[] = {
	&object_console, /* before what its streams are by nature */
	&object_eventfd, &object_timerfd, &object_signalfd,  &object_epoll,   &object_device,
	&object_pipe,	 &object_unix,	  &object_directory, &object_regular, NULL,
};
