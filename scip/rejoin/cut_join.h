/*
 * Joins the images of several parts of a cut into one image, so that all of them can be restored on one host
 * (docs/CUTS.md).
 *
 * A process whose stub is in another part replaces the stub, so the tree is whole again. Numbers that were
 * unique on one host only (object ids, inodes, offsets in the image) are shifted to be unique in the joined
 * image. The two ends of a bridged stream between parts become the two ends of one pipe or UNIX connection;
 * data in flight goes to the reader's queue. TCP connections are made again by cut_provider.c.
 */
#ifndef SCIP_REJOIN_CUT_JOIN_H
#define SCIP_REJOIN_CUT_JOIN_H

#include "image/image.h"
#include "proto/cluster.pb-c.h"

/* Opens the joined image of the parts that `cut` names; the caller closes *out. Each part is verified, so
 * the joined image is not verified again. It is an unnamed file in the directory of the first part. Fails
 * with -EBADMSG for malformed parts, -EEXIST for System V ids in two parts, -ENOSPC; no file stays then. */
must_check int cut_join(const Pbeam__CutImageName *cut, struct image_reader **out, struct err *err);

/* ---- cut_join_streams.c ---- */
/* Replaces each bridged stream ("cut-line") that has both ends in the manifest by a local pipe or UNIX
 * connection. Data in flight is read from and written to the file of `writer`. New parts of the manifest are
 * allocated as protobuf-c's unpack does. */
must_check int cut_join_streams(Pbeam__Manifest *manifest, struct image_writer *writer, struct err *err);

#endif
