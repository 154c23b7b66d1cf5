/*
 * The processes of a migration made ahead, while those that they are to become still run elsewhere.
 *
 * The skeleton is an image without contents. Its plan is carried out, and each husk gets the private
 * anonymous memory that its process has, empty and writable: the first of two fills (inherit.h). Contents are
 * then written from outside, at their final addresses. The final image says of each page either where it is
 * in the file or (offset 0) that it has been sent: the second fill keeps those, drops what is not to be there
 * any more and reads the rest. To inherit_request() it looks as if what was sent lay in the file, at an
 * offset that no file has and that is the page's own.
 *
 * Not made ahead: what needs objects first (a terminal for a session of its own) or a living parent's help.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/restore/coordinate.h"
#include "scip/restore/keeper_protocol.h"
#include "scip/tracee/remote.h"

/* Where what was sent lies, as far as inherit.h is concerned. */
#define SENT_BASE     (1ull << 62)
#define SENT_PROCESS  (1ull << 47)
#define PROCESSES_MAX 16384
/* Of a mapping that was put together from several: no protection is like it. */
#define PROT_MIXED    (1u << 30)

enum { GONE_LOOKS = 4000, GONE_NAP_NS = 500000, SETTLE_LEAST = 8192 };

/* What a process has by now. */
struct premade_process {
	Pbeam__Memory memory; /* its mappings: copies of the skeleton's */
	Pbeam__Mapping *copies;
	Pbeam__Mapping **more; /* those that were added later, each malloc'd */
	size_t nmore;
	struct inherit_state *state; /* owned by the coordinate */
	size_t settled;		     /* how long its list of pages was when it was last in order */
};

struct restore_premade {
	struct coordinate coordinate;
	struct restore_options options;
	struct premade_process *processes;
	size_t n;
	struct err err;
	pthread_mutex_t lock; /* of the lists of pages */
};

static int64_t shift_of(size_t index)
{
	return (int64_t)(SENT_BASE + index * SENT_PROCESS);
}

static bool is_tracked(const Pbeam__Mapping *map)
{
	bool anonymous = map->kind == PBEAM__MAPPING__KIND__ANON_PRIVATE ||
			 map->kind == PBEAM__MAPPING__KIND__HEAP || map->kind == PBEAM__MAPPING__KIND__STACK;

	return anonymous && (map->flags & MAP_PRIVATE) && !(map->flags & MAP_HUGETLB);
}

/* ---- making them ---- */

static int check_plan(const struct coordinate *coordinate)
{
	struct name_process stub;
	bool comes_back = stub_find(coordinate, &stub);

	for (size_t i = 0; i < coordinate->manifest->n_processes; i++)
		if (coordinate->manifest->processes[i]->state == PBEAM__PROCESS__STATE__ZOMBIE)
			return err_set(coordinate->err, -ENOTSUP, "there is a zombie among them");
	for (int i = 0; i < coordinate->plan.nsteps; i++)
		if (coordinate->plan.steps[i].kind == PLAN_SETSID &&
		    !(comes_back && coordinate->plan.steps[i].node == 0 &&
		      getsid(stub.rpid.n) == stub.rpid.n))
			return err_set(coordinate->err, -ENOTSUP, "there is a session among them");
	if (coordinate->above.lives)
		return err_set(coordinate->err, -ENOTSUP, "their parent is here");
	if (coordinate->manifest->n_processes > PROCESSES_MAX)
		return err_set(coordinate->err, -ENOTSUP, "they are too many");
	return 0;
}

/* The mappings that it can have before all else, empty. */
static int copy_memory(const Pbeam__Memory *from, struct premade_process *to)
{
	to->copies = calloc(from->n_mappings + 1, sizeof(*to->copies));
	to->memory = *from;
	to->memory.n_mappings = 0;
	to->memory.mappings = calloc(from->n_mappings + 1, sizeof(Pbeam__Mapping *));
	if (!to->copies || !to->memory.mappings)
		return -ENOMEM;
	for (size_t i = 0; i < from->n_mappings; i++) {
		Pbeam__Mapping *copy = &to->copies[to->memory.n_mappings];

		if (!is_tracked(from->mappings[i]) && !inherit_is_kernels(from->mappings[i]))
			continue;
		*copy = *from->mappings[i];
		copy->n_pages = copy->n_guards = 0;
		if (is_tracked(copy))
			copy->prot |= PROT_READ | PROT_WRITE;
		to->memory.mappings[to->memory.n_mappings++] = copy;
	}
	return 0;
}

static int note_state(struct coordinate *coordinate, struct premade_process *process, int node)
{
	struct inherit_state *state = calloc(1, sizeof(*state));

	if (!state)
		return -ENOMEM;
	state->next = coordinate->states;
	coordinate->states = state;
	state->like = &process->memory;
	state->prot = calloc(process->memory.n_mappings + 1, sizeof(*state->prot));
	if (!state->prot)
		return -ENOMEM;
	for (size_t i = 0; i < process->memory.n_mappings; i++)
		state->prot[i] = process->memory.mappings[i]->prot;
	process->state = state;
	coordinate->made[node].has = state;
	return 0;
}

static int fill_empty(struct restore_premade *p, size_t i)
{
	struct coordinate *coordinate = &p->coordinate;
	Pbeam__ScipFill fill = PBEAM__SCIP_FILL__INIT;
	Pbeam__Process process = *coordinate->manifest->processes[i];
	int image = image_reader_fd(coordinate->image);
	int r = copy_memory(process.memory, &p->processes[i]);

	if (r == 0)
		r = note_state(coordinate, &p->processes[i], (int)i);
	if (r < 0)
		return err_code(coordinate->err, r, "memory of vpid %d", process.vpid);
	process.memory = &p->processes[i].memory;
	process.n_descriptors = 0;
	fill.process = &process;
	fill.memory_only = true;
	fill.coordinator_rpid = getpid();
	r = link_ask(coordinate->made[i].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL, &fill.base, &image, 1,
		     coordinate->err);
	return r < 0 ? r
		     : link_answer(coordinate->made[i].sock, &pbeam__scip_done__descriptor, NULL,
				   coordinate->err);
}

static int make(struct restore_premade *p)
{
	struct coordinate *coordinate = &p->coordinate;
	int r = check_numbers(coordinate);

	if (r == 0)
		r = above_find(coordinate);
	if (r == 0)
		r = coordinate_plan(coordinate);
	if (r == 0)
		r = check_plan(coordinate);
	if (r == 0)
		r = above_hold(coordinate);
	if (r == 0)
		r = tree_make(coordinate);
	for (size_t i = 0; i < p->n && r == 0; i++)
		if (coordinate->manifest->processes[i]->memory)
			r = fill_empty(p, i);
	return r;
}

static void free_processes(struct premade_process *processes, size_t n)
{
	for (size_t i = 0; i < n && processes; i++) {
		free(processes[i].memory.mappings);
		free(processes[i].copies);
		for (size_t j = 0; j < processes[i].nmore; j++)
			free(processes[i].more[j]);
		free(processes[i].more);
	}
	free(processes);
}

int restore_premake(struct restore_premade **out, struct names *names, struct image_reader *image,
		    const struct restore_options *options, struct err *err)
{
	struct restore_premade *p = calloc(1, sizeof(*p));
	int r;

	if (!p) {
		image_reader_close(image);
		return err_code(err, -ENOMEM, "make processes");
	}
	pthread_mutex_init(&p->lock, NULL);
	p->options = *options;
	p->n = image_reader_manifest(image)->n_processes;
	p->processes = calloc(p->n + 1, sizeof(*p->processes));
	p->coordinate = (struct coordinate){.names = names,
					    .image = image,
					    .manifest = image_reader_manifest(image),
					    .options = &p->options,
					    .whole = coordinate_is_whole(names, options),
					    .above = {.sock = -1},
					    .err = err};
	coordinate_prepare();
	r = p->processes && p->n ? make(p) : err_set(err, -EINVAL, "there is no process in the image");
	p->coordinate.err = &p->err;
	if (r < 0) {
		restore_premade_abandon(p);
		return r;
	}
	*out = p;
	return 0;
}

/* Until their numbers are free: others may be made under them at once. */
static void wait_until_gone(const struct restore_premade *p)
{
	for (int looks = 0; looks < GONE_LOOKS; looks++) {
		struct name_process process;
		bool any = false;

		for (size_t i = 0; i < p->n && !any; i++) {
			struct vpid vpid = {p->coordinate.manifest->processes[i]->vpid};

			any = names_process_get(p->coordinate.names, vpid, &process) == 0 &&
			      process.state != NAME_STATE_STUB;
		}
		if (!any)
			return;
		nanosleep(&(struct timespec){.tv_nsec = GONE_NAP_NS}, NULL);
	}
}

void restore_premade_abandon(struct restore_premade *p)
{
	const struct keeper_request request = {.type = KEEPER_REPLACE};
	pid_t none;

	/* Their end is not the job's. */
	if (p->coordinate.made && tree_ask_keeper(&p->coordinate, &request, &none) < 0)
		log_debug("the keeper does not answer");
	tree_abandon(&p->coordinate);
	if (p->coordinate.made)
		wait_until_gone(p);
	coordinate_close(&p->coordinate);
	image_reader_close(p->coordinate.image);
	free_processes(p->processes, p->n);
	free(p);
}

/* ---- contents ---- */

int restore_premade_find(const struct restore_premade *p, int32_t vpid)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->coordinate.manifest->processes[i]->vpid == vpid)
			return (int)i;
	return -1;
}

/* Where the pieces are to be, all within the process. */
static int place_pieces(const struct restore_premade *p, size_t index, const struct restore_piece *pieces,
			size_t n, struct iovec remote[RESTORE_PIECES], struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		const uint64_t address = pieces[i].address, len = pieces[i].len;

		if (index >= p->n || !p->processes[index].state || n > RESTORE_PIECES ||
		    address % IMAGE_PAGE || len % IMAGE_PAGE || address >= SENT_PROCESS ||
		    len > SENT_PROCESS - address)
			return err_set(err, -EPROTO, "pages that came are of no process");
		remote[i] = (struct iovec){(void *)(uintptr_t)address, len}; // NOLINT: an address there
	}
	return 0;
}

/* They are there: from now on it looks as if they had been read from the image. What is written again and
 * again does not make the list longer and longer. */
static int note_pieces(struct restore_premade *p, size_t index, const struct restore_piece *pieces, size_t n)
{
	struct premade_process *process = &p->processes[index];
	struct extents *list = &process->state->pages;
	int r = 0;

	pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < n && r == 0; i++)
		r = extents_add(list, (struct extent){pieces[i].address, pieces[i].address + pieces[i].len,
						      shift_of(index)});
	if (r == 0 && list->n > 2 * process->settled + SETTLE_LEAST) {
		extents_settle(list);
		process->settled = list->n;
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

int restore_premade_write(struct restore_premade *p, size_t index, const struct restore_piece *pieces,
			  size_t n, struct err *err)
{
	struct iovec local[RESTORE_PIECES], remote[RESTORE_PIECES];
	size_t at = 0;
	int r = place_pieces(p, index, pieces, n, remote, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		local[i] = (struct iovec){(void *)(uintptr_t)pieces[i].data, pieces[i].len};
	while (at < n) {
		ssize_t done = process_vm_writev(p->coordinate.made[index].rpid, local + at, n - at,
						 remote + at, n - at, 0);

		if (done <= 0)
			return err_set(err, done < 0 ? -errno : -EFAULT, "write memory at %#lx",
				       (unsigned long)(uintptr_t)remote[at].iov_base);
		for (; at < n && (size_t)done >= remote[at].iov_len; at++)
			done -= (ssize_t)remote[at].iov_len;
		if (at < n) {
			local[at].iov_base = (char *)local[at].iov_base + done;
			remote[at].iov_base = (char *)remote[at].iov_base + done;
			local[at].iov_len = remote[at].iov_len -= (size_t)done;
		}
	}
	return note_pieces(p, index, pieces, n) < 0 ? err_code(err, -ENOMEM, "pages") : 0;
}

int restore_premade_read(const struct restore_premade *p, size_t index, const struct restore_piece *pieces,
			 size_t n, uint8_t *to, struct err *err)
{
	struct iovec local = {to, 0}, remote[RESTORE_PIECES];
	int r = place_pieces(p, index, pieces, n, remote, err);

	for (size_t i = 0; i < n && r == 0; i++)
		local.iov_len += pieces[i].len;
	if (r == 0 && process_vm_readv(p->coordinate.made[index].rpid, &local, 1, remote, n, 0) !=
			      (ssize_t)local.iov_len)
		r = err_set(err, -EPROTO, "what has changed in memory came before the memory");
	return r;
}

/* ---- the end ---- */

/* What the process has of [at, end) of a mapping like `map`: the end of the piece that begins at `at`, or 0
 * with *next where the next begins. */
static uint64_t covered(const Pbeam__Memory *memory, uint64_t at, uint64_t end, uint64_t *next)
{
	*next = end;
	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *there = memory->mappings[i];

		if (there->start <= at && there->end > at)
			return there->end;
		if (there->start > at && there->start < *next)
			*next = there->start;
	}
	return 0;
}

static int map_gap(struct coordinate *coordinate, int node, const Pbeam__Mapping *map, uint64_t start,
		   uint64_t end)
{
	int64_t ret = tree_call(
		coordinate, node, SYS_mmap,
		remote_args(start, end - start, map->prot | PROT_READ | PROT_WRITE,
			    (map->flags & (MAP_PRIVATE | MAP_GROWSDOWN | MAP_NORESERVE | MAP_STACK)) |
				    MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
			    (uint64_t)-1, 0));

	return ret < 0 ? err_wrap(coordinate->err, (int)ret, "map memory at %#lx", (unsigned long)start) : 0;
}

static bool has_sent(const Pbeam__Mapping *map)
{
	for (size_t i = 0; i < map->n_pages; i++)
		if (map->pages[i]->offset == 0)
			return true;
	return false;
}

/* It has grown since the skeleton: so does what is there, and is one mapping from then on. */
static int extend(struct coordinate *coordinate, struct premade_process *process, size_t node,
		  const Pbeam__Mapping *map)
{
	Pbeam__Memory *memory = &process->memory;
	Pbeam__Mapping *whole = malloc(sizeof(*whole)), **more;
	uint64_t at = map->start, next;
	size_t n = 0;
	int r = 0;

	more = reallocarray(process->more, process->nmore + 1, sizeof(*more));
	process->more = more ? more : process->more;
	if (!whole || !more) {
		free(whole);
		return -ENOMEM;
	}
	process->more[process->nmore++] = whole;
	*whole = *map;
	whole->n_pages = whole->n_guards = 0;
	whole->prot = PROT_MIXED;
	whole->advice = 0; /* what the pieces have is overruled by that of `map`, which has some if they do */
	while (at < map->end && r == 0) {
		uint64_t end = covered(memory, at, map->end, &next);

		if (!end)
			r = map_gap(coordinate, node, map, at, next);
		at = end ? end : next;
	}
	for (size_t i = 0; i < memory->n_mappings; i++) {
		Pbeam__Mapping *there = memory->mappings[i];

		if (there->start < map->end && there->end > map->start) {
			whole->start = there->start < whole->start ? there->start : whole->start;
			whole->end = there->end > whole->end ? there->end : whole->end;
		} else {
			memory->mappings[n++] = there;
		}
	}
	if (n == memory->n_mappings)
		return err_set(coordinate->err, -EPROTO, "memory at %#lx was never sent",
			       (unsigned long)map->start);
	memory->n_mappings = n;
	/* In its place: they are in the order of their addresses. There is room: one less than there were. */
	for (; n > 0 && memory->mappings[n - 1]->start > whole->start; n--)
		memory->mappings[n] = memory->mappings[n - 1];
	memory->mappings[n] = whole;
	memory->n_mappings++;
	return r;
}

static bool is_inside_one(const Pbeam__Memory *memory, const Pbeam__Mapping *map)
{
	for (size_t i = 0; i < memory->n_mappings; i++)
		if (memory->mappings[i]->start <= map->start && memory->mappings[i]->end >= map->end)
			return true;
	return false;
}

static int settle_memory(struct coordinate *coordinate, struct premade_process *process, size_t node,
			 Pbeam__Memory *wanted)
{
	int r = 0;

	for (size_t i = 0; i < wanted->n_mappings && r == 0; i++) {
		Pbeam__Mapping *map = wanted->mappings[i];

		if (!has_sent(map))
			continue;
		if (!is_tracked(map))
			return err_set(coordinate->err, -EPROTO, "memory at %#lx was never sent",
				       (unsigned long)map->start);
		if (!is_inside_one(&process->memory, map))
			r = extend(coordinate, process, node, map);
		for (size_t p = 0; p < map->n_pages; p++)
			if (map->pages[p]->offset == 0)
				map->pages[p]->offset = map->pages[p]->address + (uint64_t)shift_of(node);
	}
	/* What the kernel's state says of protections goes by the list as it is now. */
	free(process->state->prot);
	process->state->prot = calloc(process->memory.n_mappings + 1, sizeof(*process->state->prot));
	if (!process->state->prot)
		return -ENOMEM;
	for (size_t i = 0; i < process->memory.n_mappings; i++)
		process->state->prot[i] = process->memory.mappings[i]->prot;
	extents_settle(&process->state->pages);
	return r;
}

int premake_take(struct coordinate *coordinate, struct restore_premade *p)
{
	const Pbeam__Manifest *manifest = coordinate->manifest;
	int r = 0;

	if (manifest->n_processes != p->n)
		r = err_set(coordinate->err, -ESTALE, "the processes are not those that were made ahead");
	for (size_t i = 0; i < p->n && r == 0; i++)
		if (manifest->processes[i]->vpid != p->coordinate.manifest->processes[i]->vpid ||
		    !manifest->processes[i]->memory != !p->coordinate.manifest->processes[i]->memory)
			r = err_set(coordinate->err, -ESTALE, "vpid %d was not made ahead",
				    manifest->processes[i]->vpid);
	coordinate->plan = p->coordinate.plan;
	coordinate->made = p->coordinate.made;
	coordinate->states = p->coordinate.states;
	coordinate->above = p->coordinate.above;
	for (size_t i = 0; i < p->n && r == 0; i++) {
		coordinate->plan.nodes[i].process = manifest->processes[i];
		/* The image is ours alone, in memory. */
		if (manifest->processes[i]->memory)
			r = settle_memory(coordinate, &p->processes[i], i, manifest->processes[i]->memory);
	}
	coordinate->premade = p;
	return r;
}

void premake_release(struct restore_premade *p)
{
	if (!p)
		return;
	image_reader_close(p->coordinate.image);
	free_processes(p->processes, p->n);
	free(p);
}
