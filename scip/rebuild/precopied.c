/*
 * Pre-copied processes: made while the processes that they will become still run on their host.
 *
 * The skeleton is an image without contents. Its plan is carried out, and each husk gets the private
 * anonymous memory of its process, empty and writable: the first of two fills (inherit.h). Contents are then
 * written from outside, at their final addresses. The final image says of each page either where it is in the
 * file, or (offset 0) that it has been sent. The second fill keeps sent pages, drops pages that are not
 * wanted any more and reads the rest. inherit_request() sees sent pages as if they lay in the file, at an
 * offset that no file has and that is the page's own.
 *
 * Processes that need objects first (a session with a terminal) or a living parent's help cannot be
 * pre-copied.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/fill/fill.h"
#include "scip/rebuild/precopied_parts.h"
#include "scip/tracee/remote.h"

enum { PROCESSES_MAX = 16384 };

/* ---- making the processes ---- */

/* True if another process is in its group or session. */
static bool leads_others(const Pbeam__Manifest *manifest, const Pbeam__Process *leader)
{
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (manifest->processes[i] != leader && (manifest->processes[i]->vpgid == leader->vpid ||
							 manifest->processes[i]->vsid == leader->vpid))
			return true;
	return false;
}

/* Leaves out zombies: most of them will have been waited for when the migration ends. A zombie whose number
 * names a group or session of others cannot be left out. */
static int leave_zombies(const struct rebuild *rebuild)
{
	Pbeam__Manifest *manifest =
		(Pbeam__Manifest *)(uintptr_t)rebuild->manifest; /* nothing else reads it */
	size_t kept = 0;

	for (size_t i = 0; i < manifest->n_processes; i++)
		if (manifest->processes[i]->state == PBEAM__PROCESS__STATE__ZOMBIE &&
		    leads_others(manifest, manifest->processes[i]))
			return err_set(rebuild->err, -ENOTSUP, "zombie %d leads others",
				       manifest->processes[i]->vpid);
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (manifest->processes[i]->state == PBEAM__PROCESS__STATE__ZOMBIE)
			message_free(manifest->processes[i]);
		else
			manifest->processes[kept++] = manifest->processes[i];
	manifest->n_processes = kept;
	return 0;
}

static int check_plan(const struct rebuild *rebuild)
{
	if (rebuild->above.lives)
		return err_set(rebuild->err, -ENOTSUP, "their parent lives on this host");
	if (rebuild->manifest->n_processes > PROCESSES_MAX)
		return err_set(rebuild->err, -ENOTSUP, "there are too many processes");
	return 0;
}

/* Copies the mappings that the process can have from the beginning, without contents. */
static int copy_memory(const Pbeam__Memory *from, struct precopied_process *to)
{
	to->copies = calloc(from->n_mappings + 1, sizeof(*to->copies));
	to->memory = *from;
	to->memory.n_mappings = 0;
	to->memory.mappings = calloc(from->n_mappings + 1, sizeof(Pbeam__Mapping *));
	if (!to->copies || !to->memory.mappings)
		return -ENOMEM;
	for (size_t i = 0; i < from->n_mappings; i++) {
		Pbeam__Mapping *copy = &to->copies[to->memory.n_mappings];

		if (!precopied_is_tracked(from->mappings[i]) && !fill_mapping_is_kernels(from->mappings[i]))
			continue;
		*copy = *from->mappings[i];
		copy->n_pages = copy->n_guards = 0;
		if (precopied_is_tracked(copy))
			copy->prot |= PROT_READ | PROT_WRITE;
		to->memory.mappings[to->memory.n_mappings++] = copy;
	}
	return 0;
}

static int note_state(struct rebuild *rebuild, struct precopied_process *process, int node)
{
	struct inherit_state *state = calloc(1, sizeof(*state));

	if (!state)
		return -ENOMEM;
	state->next = rebuild->states;
	rebuild->states = state;
	state->like = &process->memory;
	state->prot = calloc(process->memory.n_mappings + 1, sizeof(*state->prot));
	if (!state->prot)
		return -ENOMEM;
	for (size_t i = 0; i < process->memory.n_mappings; i++)
		state->prot[i] = process->memory.mappings[i]->prot;
	process->state = state;
	rebuild->made[node].has = state;
	return 0;
}

static int fill_empty(struct precopied *p, size_t i)
{
	struct rebuild *rebuild = &p->rebuild;
	Pbeam__ScipFill fill = PBEAM__SCIP_FILL__INIT;
	Pbeam__Process process = *rebuild->manifest->processes[i];
	int image = image_reader_fd(rebuild->image);
	int r = copy_memory(process.memory, &p->processes[i]);

	if (r == 0)
		r = note_state(rebuild, &p->processes[i], (int)i);
	if (r < 0)
		return err_code(rebuild->err, r, "memory of vpid %d", process.vpid);
	process.memory = &p->processes[i].memory;
	process.n_descriptors = 0;
	fill.process = &process;
	fill.memory_only = true;
	fill.coordinator_rpid = getpid();
	r = scip_link_ask(rebuild->made[i].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL, &fill.base, &image,
			  1, rebuild->err);
	return r < 0 ? r
		     : scip_link_answer(rebuild->made[i].sock, &pbeam__scip_done__descriptor, NULL,
					rebuild->err);
}

static int make_husks(struct precopied *p)
{
	struct rebuild *rebuild = &p->rebuild;
	int r = rebuild_check_numbers(rebuild);

	if (r == 0)
		r = above_find(rebuild);
	if (r == 0)
		r = rebuild_plan(rebuild);
	if (r == 0)
		r = check_plan(rebuild);
	if (r == 0)
		r = above_hold(rebuild);
	if (r == 0)
		r = rebuild_tree_make(rebuild);
	for (size_t i = 0; i < p->n && r == 0; i++)
		if (rebuild->manifest->processes[i]->memory)
			r = fill_empty(p, i);
	return r;
}

int precopied_make(struct precopied **out, struct names *names, struct image_reader *image,
		   const struct rebuild_options *options, struct err *err)
{
	struct precopied *p = calloc(1, sizeof(*p));
	int r;

	if (!p) {
		image_reader_close(image);
		return err_code(err, -ENOMEM, "make processes");
	}
	pthread_mutex_init(&p->lock, NULL);
	p->options = *options;
	rebuild_init(&p->rebuild, names, image, &p->options, err);
	r = rebuild_vdso_adapt(p->rebuild.manifest, err);
	if (r == 0)
		r = leave_zombies(&p->rebuild);
	if (r == 0) {
		p->n = p->rebuild.manifest->n_processes;
		p->processes = calloc(p->n + 1, sizeof(*p->processes));
		r = p->processes && p->n ? precopied_shared_make(p)
					 : err_set(err, -EINVAL, "there is no process in the image");
	}
	if (r == 0)
		r = make_husks(p);
	p->rebuild.err = &p->err;
	if (r < 0) {
		precopied_abandon(p);
		return r;
	}
	*out = p;
	return 0;
}

void precopied_abandon(struct precopied *p)
{
	/* The end of these processes is not the end of the job. */
	if (p->rebuild.made &&
	    rebuild_ask_keeper(&p->rebuild, PBEAM__KEEPER_REQUEST__KEEPER_REPLACE, NULL, NULL) < 0)
		log_debug("the keeper does not reply");
	rebuild_tree_kill(&p->rebuild);
	for (size_t i = 0; i < p->n && p->rebuild.made; i++)
		precopied_await_gone(p->rebuild.names,
				     (struct vpid){p->rebuild.manifest->processes[i]->vpid});
	rebuild_destroy(&p->rebuild);
	precopied_release(p);
}
