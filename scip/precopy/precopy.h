/*
 * Pre-copy: memory is sent while the processes run, in rounds of what was written meanwhile.
 *
 * precopy_begin() freezes the processes for a moment, sends the skeleton (the processes without their
 * contents), from which the target makes the pre-copied processes, and begins to track writes (track.h). Each
 * round sends what was written until then (page_sender.h). The rounds end when the rest can be sent within
 * the pause that is allowed. When all processes are frozen, one more round does that: so the final image
 * holds only memory that is not tracked, and the processes that were not there before (match.h). Shared
 * memory is pre-copied too, and is compared at the end (shared_pages.h).
 */
#ifndef SCIP_PRECOPY_PRECOPY_H
#define SCIP_PRECOPY_PRECOPY_H

#include "namespace/names.h"
#include "scip/precopy/migrate_progress.h"

struct group;
struct shared_object;
struct precopy;

struct precopy_options {
	struct vpid target;
	bool alone; /* without its descendants */
	const struct name_job *job;
	/* True for a process that stays on this host; NULL: none does. */
	bool (*stays)(void *arg, struct vpid vpid);
	void *stays_arg;
	const char *host;		  /* where they go */
	int channel;			  /* of the migration; remains the caller's */
	uint64_t max_pause_ns, bandwidth; /* bytes per second; 0: the usual pause, no limit */
	bool comes_home;		  /* the target's own stub is there */
	/* Called during the rounds; may be NULL. */
	void (*progress)(void *arg, const struct migrate_progress *progress);
	void *progress_arg;
};

/* Sends the skeleton and begins to track. Returns 0 with *out NULL where pre-copy is of no use or not
 * possible, which the log explains; -errno only when the channel is broken. */
must_check int precopy_begin(struct precopy **out, struct names *names, const struct precopy_options *options,
			     struct err *err);
/* Sends rounds until the rest fits into the pause, or rounds make it no smaller. 0 or -errno. */
must_check int precopy_send_rounds(struct precopy *precopy, struct err *err);
/* Marks the members of the frozen group that the skeleton still describes (member->precopied). Returns their
 * number. */
size_t precopy_match(const struct precopy *precopy, struct group *group);
/* Sends the last round, of the members that precopy_match() has marked: none of the memory that is tracked
 * counts as written afterwards. The others are no longer tracked. 0 or -errno. */
must_check int precopy_send_last(struct precopy *precopy, const struct group *group, struct err *err);
/* The same for shared memory, once the processes are dumped: a shared_precopy_fn. 0 or -errno. */
must_check int precopy_send_shared(struct precopy *precopy, struct shared_object *list, size_t n,
				   struct err *err);
/* Bytes that were sent, and in how many rounds. */
void precopy_count(const struct precopy *precopy, uint64_t *bytes, uint32_t *rounds);
/* Bytes of shared memory that were pre-copied. */
uint64_t precopy_shared_bytes(const struct precopy *precopy);
/* How long it takes to send so many bytes. */
uint64_t precopy_send_ns(const struct precopy *precopy, uint64_t bytes);
/* Ends the tracking. May be NULL. */
void precopy_end(struct precopy *precopy);

#endif
