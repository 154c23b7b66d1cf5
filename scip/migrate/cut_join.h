/*
 * Several parts of one job that are to be on one host: their images become one, as if all had always been
 * there (docs/CUTS.md).
 *
 * A process whose stub was in another of them takes the place of that, so the tree is whole again; what they
 * call by numbers that were their own hosts' (objects, inodes, places in the file) gets numbers that are
 * nobody else's; the two ends of a bridge between them are the two ends of one pipe or UNIX connection, with
 * what was on its way in the queue of its reader. TCP connections are made anew (cut_target.c).
 */
#ifndef SCIP_MIGRATE_CUT_JOIN_H
#define SCIP_MIGRATE_CUT_JOIN_H

#include "image/image.h"
#include "proto/cluster.pb-c.h"

/* The images that `cut` names, each verified, as one in a file without a name beside them: it need not be
 * verified again. -EBADMSG, -ENOSPC ...: nothing is left. */
must_check int cut_join(const Pbeam__CutImageName *cut, struct image_reader **out, struct err *err);

/* ---- cut_join_lines.c ---- */
/* Lines of "cut-line" both ends of which are in the manifest end here; bulk data goes to `writer`, and comes
 * from its file. What changes in the manifest is allocated as unpacking does. */
must_check int cut_join_lines(Pbeam__Manifest *manifest, struct image_writer *writer, struct err *err);

#endif
