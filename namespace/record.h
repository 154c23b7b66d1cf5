/*
 * What the kernel does not tell later, recorded when it happens: the paths of inotify watches, the seccomp
 * filters that programs install, the numbers that pseudo-terminals had, the System V objects that were made.
 * Kept in files of the job under the runtime directory (RUNTIME/record/KEEPER.*), so that whoever dumps can
 * read them and no scip's death loses them; they go with the job.
 */
#ifndef NAMESPACE_RECORD_H
#define NAMESPACE_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "namespace/names.h"

/* `sdev` is the device as fdinfo shows it: the kernel's (major << 20 | minor). */
must_check int record_watch_add(struct rpid keeper, uint32_t sdev, uint64_t ino, const char *path);
/* The path last recorded for it. 0, -ENOENT, -ENAMETOOLONG. */
must_check int record_watch_find(struct rpid keeper, uint32_t sdev, uint64_t ino, char *path, size_t size);

/* Appends a filter (struct sock_filter[], bytes a multiple of 8) that the process installed. */
must_check int record_filter_add(struct rpid keeper, struct vpid vpid, const void *filter, size_t bytes);
/* A child has what its parent had. No effect where there is nothing. */
must_check int record_filter_inherit(struct rpid keeper, struct vpid parent, struct vpid child);
/* Filter number `index`, oldest first, malloc'd and the caller's. 1, or 0 when there are no more. */
must_check int record_filter_get(struct rpid keeper, struct vpid vpid, unsigned index, void **filter,
				 size_t *bytes);
/* The process is gone. */
void record_filter_forget(struct rpid keeper, struct vpid vpid);

/* The job's pseudo-terminal that it knows as /dev/pts/`virtual` is /dev/pts/`real`. Whatever had either
 * number before is forgotten. */
must_check int record_pts_bind(struct names *names, struct rpid keeper, int32_t virtual, int32_t real);
/* A number that did not diverge gives itself; one that only another's terminal has gives one that none has.
 */
int32_t record_pts_real(struct rpid keeper, int32_t virtual);
/* Back; a terminal whose own number is another's name in the job gets one of our own, recorded. */
int32_t record_pts_virtual(struct names *names, struct rpid keeper, int32_t real);

/* A System V object that a process of the job has made, by its real id. */
must_check int record_ipc_add(struct rpid keeper, enum names_ipc kind, int32_t real);
/* All that were made, each once, in ascending order; some may be removed. *ids is the caller's. */
must_check int record_ipc_list(struct rpid keeper, enum names_ipc kind, int32_t **ids, size_t *n);

/* The UNIX socket with this inode has this process for its peer, whatever SO_PEERCRED says. */
must_check int record_peer_add(struct rpid keeper, uint64_t ino, struct vpid peer);
/* 0 if nothing is recorded: what the kernel says is right. */
struct vpid record_peer_find(struct rpid keeper, uint64_t ino);
/* All sockets of the job are gone. */
void record_peer_forget(struct rpid keeper);

/* The job is gone, or a new keeper has this number. */
void record_forget_job(struct rpid keeper);

#endif
