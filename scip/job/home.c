#include "scip/job/home.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/log.h"
#include "scip/job/requests.h"

#define MS 1000000ull

/* Looks again after a removal: it may go on, and the last steps of a logout (unmounting the directory and
 * removing its mount point) notify nobody. */
static const uint64_t looks_ms[] = {2, 50, 200, 1000, 4000};

static void home_watch(struct job *job)
{
	char path[PATH_MAX];

	if (job->home_dir >= 0)
		close(job->home_dir);
	job->home_dir =
		dirs_runtime(path, NULL, NULL) < 0 ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (job->home_dir >= 0 && fcntl(job->home_dir, F_NOTIFY, DN_DELETE | DN_RENAME | DN_MULTISHOT) < 0)
		log_debug("removals in %s are not noticed", path);
}

static bool is_home_removed(const struct job *job)
{
	struct stat st;

	return job->home_dir < 0 || fstat(job->home_dir, &st) < 0 || st.st_nlink == 0;
}

/* Returns true if nothing was missing. The table gets its place at once: until then other programs would make
 * a new one. The socket waits, unless it is `wanted`, for what removes its directory. */
static bool home_put_back(struct job *job, bool wanted)
{
	const bool published = names_is_published(job->names), reachable = requests_are_reachable(job);
	struct err err = ERR_INIT;

	if (published && reachable && !is_home_removed(job))
		return true;
	if (!published && names_publish(job->names, &err) < 0)
		log_error("the job cannot be found by other programs: %s", err.text);
	if (!wanted)
		return false;
	err_clear(&err);
	if (!reachable && requests_return(job, &err) < 0)
		log_error("the job takes no requests: %s", err.text);
	home_watch(job);
	return false;
}

static void home_on_look(void *arg)
{
	struct job *job = arg;

	home_put_back(job, job->home_look > 0);
	if (++job->home_look == sizeof(looks_ms) / sizeof(looks_ms[0]))
		return;
	if (loop_timer_start(&job->loop, looks_ms[job->home_look] * MS, home_on_look, job) < 0)
		log_warn("no alarm to spare");
}

void home_open(struct job *job)
{
	home_watch(job);
	home_check(job, true);
}

void home_check(struct job *job, bool wanted)
{
	if (home_put_back(job, wanted))
		return;
	loop_timer_stop(&job->loop, home_on_look, job);
	job->home_look = 0;
	if (loop_timer_start(&job->loop, looks_ms[0] * MS, home_on_look, job) < 0)
		log_warn("no alarm to spare");
}

void home_close(struct job *job)
{
	names_unpublish();
	if (job->home_dir >= 0)
		close(job->home_dir);
	job->home_dir = -1;
}
