#include "scip/rebuild/rebuild_obstacles.h"

#include <stdlib.h>

#include "scip/rebuild/rebuild_parts.h"

/* Opens the image with its ancestors; one that is damaged or missing is the only obstacle. */
static int open_image(struct image_reader **image, const char *path, struct rebuild_obstacles *out,
		      struct err *err)
{
	int r = image_reader_open(image, path, err);

	if (r == 0)
		r = image_reader_open_chain(*image, err);
	if (r == 0)
		return 1;
	r = rebuild_obstacles_add(out, err);
	err_clear(err);
	return r;
}

typedef int check_limits(struct rebuild *rebuild);

static int list_obstacles(struct names *names, struct image_reader *image,
			  const struct rebuild_options *options, check_limits *limits,
			  struct rebuild_obstacles *out, struct err *err)
{
	struct rebuild *rebuild = NULL;
	int r = rebuild_open(&rebuild, names, image, options, err);

	if (r < 0) {
		r = rebuild_obstacles_add(out, err);
		err_clear(err);
		return r;
	}
	rebuild->obstacles = out;
	r = rebuild_check(rebuild);
	if (r == 0)
		r = limits(rebuild);
	rebuild_close(rebuild);
	return r;
}

int rebuild_list_obstacles(struct names *names, const char *path, bool force, struct rebuild_obstacles *out,
			   struct err *err)
{
	struct fill_signs signs = {0};
	struct rebuild_options options = {.path = path, .force = force, .keeper_socket = -1, .signs = &signs};
	struct image_reader *image = NULL;
	int r = open_image(&image, path, out, err);

	if (r > 0)
		r = list_obstacles(names, image, &options, rebuild_check_limits, out, err);
	image_reader_close(image);
	return r;
}

int rebuild_list_obstacles_saved(struct names *names, struct image_reader *image,
				 const struct rebuild_options *options, struct rebuild_obstacles *out,
				 struct err *err)
{
	return list_obstacles(names, image, options, rebuild_check_ceilings, out, err);
}
