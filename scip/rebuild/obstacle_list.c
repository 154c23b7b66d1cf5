/* The list of obstacles, and the choice of each check between listing a failure and returning it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "scip/rebuild/rebuild_obstacles.h"
#include "scip/rebuild/rebuild_parts.h"

enum { OBSTACLES_MAX = 1000 };

int rebuild_obstacles_add(struct rebuild_obstacles *list, const struct err *err)
{
	char **more, *text;

	for (size_t i = 0; i < list->n; i++)
		if (!strcmp(list->v[i], err->text))
			return 0;
	if (list->n >= OBSTACLES_MAX)
		return 0;
	more = reallocarray(list->v, list->n + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	list->v = more;
	text = strdup(err->text);
	if (!text)
		return -ENOMEM;
	list->v[list->n++] = text;
	return 0;
}

int rebuild_obstacle(struct rebuild *rebuild, int r)
{
	if (r >= 0 || !rebuild->obstacles)
		return r;
	if (!rebuild->err->text[0])
		err_code(rebuild->err, r, "check the image");
	r = rebuild_obstacles_add(rebuild->obstacles, rebuild->err);
	err_clear(rebuild->err);
	return r;
}

void rebuild_obstacles_free(struct rebuild_obstacles *obstacles)
{
	for (size_t i = 0; i < obstacles->n; i++)
		free(obstacles->v[i]);
	free(obstacles->v);
	*obstacles = (struct rebuild_obstacles){NULL, 0};
}
