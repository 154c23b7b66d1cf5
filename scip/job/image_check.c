/* `scip restore --check`: what would prevent the restore of an image here. */
#include "scip/job/image_check.h"

#include <stdio.h>

#include "base/text.h"
#include "namespace/names.h"
#include "scip/rebuild/rebuild_obstacles.h"

enum { STATUS_FAILED = 1 };

int image_check_run(const char *path, bool force)
{
	struct rebuild_obstacles obstacles = {NULL, 0};
	struct err err = ERR_INIT;
	struct names *names = NULL;
	int r = names_open(&names, &err), status;

	if (r == 0)
		names_limit_wait(names, true);
	if (r == 0)
		r = rebuild_list_obstacles(names, path, force, &obstacles, &err);
	for (size_t i = 0; i < obstacles.n; i++)
		puts(text_visible(obstacles.v[i]));
	if (r == 0 && fflush(stdout) != 0)
		r = err_sys(&err, "write to standard output");
	if (r < 0)
		fprintf(stderr, "scip: %s\n", err.text);
	status = r < 0 || obstacles.n > 0 ? STATUS_FAILED : 0;
	rebuild_obstacles_free(&obstacles);
	names_close(names);
	return status;
}
