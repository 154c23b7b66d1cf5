/* Weak definitions for what is not built yet: who asks is told that there is none. They go with the arrival
 * of the strong ones. */
#include <errno.h>

#include "scip/object/object.h"

__attribute__((weak)) int object_restore_shared(struct object_restore *restore, uint32_t shared_id,
						struct err *err)
{
	return err_set(err, -ENOENT, "shared memory %u has no descriptor", shared_id);
}

__attribute__((weak)) int object_restore_controlling_tty(struct object_restore *restore, struct vpid session)
{
	return -1;
}
