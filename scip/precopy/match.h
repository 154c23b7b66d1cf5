/*
 * Finds the members of a frozen group that the skeleton still describes.
 *
 * Processes come and go after the skeleton was taken: a shell's commands, a build's compilers. The processes
 * that have stayed need not be sent again if they can continue in the pre-copied husks, together with their
 * parents and the leaders of their groups and sessions, and if the others can be made beside them.
 */
#ifndef SCIP_PRECOPY_MATCH_H
#define SCIP_PRECOPY_MATCH_H

#include "scip/capture/track.h"

/* Sets or clears member->precopied of all members. Returns how many have it: none unless the first member
 * has. */
size_t match_members(const struct tracked *v, size_t n, struct group *group);

#endif
