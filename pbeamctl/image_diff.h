/* What changed between two images. */
#ifndef PBEAMCTL_IMAGE_DIFF_H
#define PBEAMCTL_IMAGE_DIFF_H

#include "base/err.h"
#include "image/image.h"

/* Prints what `newer` has that `older` has not, and the other way round. Both are verified by the caller. 0,
 * or -errno where one cannot be read. */
must_check int image_diff(struct image_reader *older, struct image_reader *newer, struct err *err);

#endif
