/* A guest keeper whose host becomes the home of its job: the one that had the console is lost. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/image.h"
#include "image/store.h"
#include "scip/job/interval.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/job/viewer.h"

/* What only the home keeper does is in the image. */
static void take_interval(struct job *job, const Pbeam__CutImageName *cut)
{
	struct image_reader *image = NULL;
	struct err err = ERR_INIT;
	const Pbeam__Job *saved;
	char path[PATH_MAX];
	int r = store_image_path(cut->name, cut->number, cut->part, path, &err);

	if (r == 0)
		r = image_reader_open(&image, path, &err);
	if (r < 0)
		log_warn("job %s: %s", job->entry.uuid, err.text);
	saved = r == 0 ? image_reader_manifest(image)->job : NULL;
	if (saved) {
		job->entry.interval_ns = saved->interval_ns;
		job->entry.keep = saved->keep;
	}
	image_reader_close(image);
}

void remote_console_become_home(struct job *job, const Pbeam__MigrateBegin *begin)
{
	struct err err = ERR_INIT;

	log_info("job %s: its console is here now, not on %s", job->entry.uuid, job->home);
	remote_console_free(job);
	job->home = NULL;
	job->entry.home[0] = 0;
	take_interval(job, begin->cut);
	if (remote_console_cut_pipes(job, &err) < 0 || names_job_update(job->names, &job->entry) < 0 ||
	    interval_start(job, &err) < 0)
		log_error("job %s: %s", job->entry.uuid, err.text);
	links_restart(job); /* its end of the console is another one now */
	viewer_alone(job);
}
