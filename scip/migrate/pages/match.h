/*
 * Who of a frozen group is still what the skeleton said.
 *
 * Between the two processes come and go: a shell's commands, a build's compilers. Those that have stayed need
 * not be sent again if they can go on in the husks that were made ahead, with their parents and the leaders
 * of their groups and sessions, and if the others can be made beside them.
 */
#ifndef SCIP_MIGRATE_MATCH_H
#define SCIP_MIGRATE_MATCH_H

#include "scip/migrate/pages/track.h"

/* Sets member->ahead of all members. How many have it. The group's first member must have it, or none has. */
size_t match_members(const struct tracked *v, size_t n, struct group *group);

#endif
