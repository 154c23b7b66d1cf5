#include "scip/rebuild/inherit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "image/image.h"
#include "scip/fill/fill.h"

/* The flags and advice that two mappings must have in common to be alike. */
#define ALIKE_FLAGS (MAP_SHARED | MAP_PRIVATE | MAP_GROWSDOWN | MAP_NORESERVE | MAP_STACK)
#define ALIKE_ADVICE                                                                                         \
	((uint32_t)PBEAM__MAPPING__ADVICE__HUGEPAGE | (uint32_t)PBEAM__MAPPING__ADVICE__NOHUGEPAGE)

enum { ROUNDS_MAX = 64 };

/* ---- mappings ---- */

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
	return a->len == b->len && bytes_equal(a->data, b->data, a->len);
}

static bool same_file(const Pbeam__FileIdentity *a, const Pbeam__FileIdentity *b)
{
	return a && b && a->dev == b->dev && a->ino == b->ino && a->deleted == b->deleted &&
	       same_bytes(&a->path, &b->path);
}

static bool is_anonymous(const Pbeam__Mapping *map)
{
	return map->kind == PBEAM__MAPPING__KIND__ANON_PRIVATE || map->kind == PBEAM__MAPPING__KIND__HEAP ||
	       map->kind == PBEAM__MAPPING__KIND__STACK;
}

/* True if both shared mappings are of the same object and equally writable. */
static bool same_shared(const Pbeam__Mapping *there, const Pbeam__Mapping *wanted)
{
	return there->shared_id == wanted->shared_id &&
	       (there->shared_id || same_file(there->file, wanted->file)) &&
	       ((there->prot | there->max_prot) & PROT_WRITE) ==
		       ((wanted->prot | wanted->max_prot) & PROT_WRITE);
}

/* True if they map the same thing at every address; protection and contents may differ. */
static bool is_alike(const Pbeam__Mapping *there, const Pbeam__Mapping *wanted)
{
	bool same_place = there->file_offset - there->start == wanted->file_offset - wanted->start;
	uint32_t had = there->advice & ALIKE_ADVICE, advised = wanted->advice & ALIKE_ADVICE;

	if ((there->flags & ALIKE_FLAGS) != (wanted->flags & ALIKE_FLAGS) ||
	    (there->flags | wanted->flags) & MAP_HUGETLB || there->grows_down != wanted->grows_down ||
	    (had && !advised)) /* cannot be undone, only replaced */
		return false;
	if (is_anonymous(wanted))
		return is_anonymous(there);
	if (there->kind != wanted->kind)
		return false;
	switch (wanted->kind) {
	case PBEAM__MAPPING__KIND__FILE_PRIVATE:
		return same_place && same_file(there->file, wanted->file);
	case PBEAM__MAPPING__KIND__FILE_SHARED:
	case PBEAM__MAPPING__KIND__SHARED_MEMORY:
		return same_place && same_shared(there, wanted);
	case PBEAM__MAPPING__KIND__SYSV:
		return there->shared_id == wanted->shared_id && there->start == wanted->start &&
		       there->end == wanted->end && there->prot == wanted->prot &&
		       there->file_offset == wanted->file_offset;
	case PBEAM__MAPPING__KIND__ANON_PRIVATE:
	case PBEAM__MAPPING__KIND__HEAP:
	case PBEAM__MAPPING__KIND__STACK:
	case PBEAM__MAPPING__KIND__VDSO:
	case PBEAM__MAPPING__KIND__VVAR:
	case PBEAM__MAPPING__KIND__VSYSCALL:
	case _PBEAM__MAPPING__KIND_IS_INT_SIZE:
	default:
		return false;
	}
}

/* The index of the last mapping of `memory` that begins at or before `at`, or -1. The mappings must be
 * sorted, else the result is meaningless. */
static int find_last_mapping(const Pbeam__Memory *memory, uint64_t at)
{
	size_t low = 0, high = memory->n_mappings;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (memory->mappings[middle]->start <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return (int)low - 1;
}

/* The index of the mapping of `memory` that contains `map`, or -1. */
static int find_whole(const Pbeam__Memory *memory, const Pbeam__Mapping *map)
{
	int at = map->start < map->end ? find_last_mapping(memory, map->start) : -1;

	return at >= 0 && memory->mappings[at]->end >= map->end && is_alike(memory->mappings[at], map) ? at
												       : -1;
}

/* ---- memory that each process passes on ---- */

static const Pbeam__Mapping *next_of_kernel(const Pbeam__Memory *memory, size_t *at)
{
	while (*at < memory->n_mappings && !fill_mapping_is_kernels(memory->mappings[*at]))
		(*at)++;
	return *at < memory->n_mappings ? memory->mappings[(*at)++] : NULL;
}

/* True if both have the vdso at the same address. */
static bool same_vdso(const Pbeam__Memory *a, const Pbeam__Memory *b)
{
	size_t i = 0, j = 0;

	for (;;) {
		const Pbeam__Mapping *x = next_of_kernel(a, &i), *y = next_of_kernel(b, &j);

		if (!x || !y)
			return !x && !y;
		if (x->start != y->start || x->end != y->end)
			return false;
	}
}

/* The children of each process, in lists. */
struct family {
	int *child, *sibling;
};

static void link_family(const struct family *family, Pbeam__Process *const *processes, const int *from,
			size_t n)
{
	for (size_t i = 0; i < n; i++)
		family->child[i] = family->sibling[i] = -1;
	for (size_t i = n; i-- > 1;) {
		int parent = from[i];

		if (parent < 0 || (size_t)parent >= i || !processes[i]->memory ||
		    !processes[parent]->memory || !same_vdso(processes[i]->memory, processes[parent]->memory))
			continue;
		family->sibling[i] = family->child[parent];
		family->child[parent] = (int)i;
	}
}

/* Finds the memory that process i shares with its children. */
static int find_common(const struct family *family, size_t i, const struct extents *offers,
		       struct extents *common)
{
	auto_free const struct extents **lists = NULL;
	size_t n = 1;

	for (int c = family->child[i]; c >= 0; c = family->sibling[c])
		n++;
	lists = calloc(n, sizeof(*lists));
	if (!lists)
		return -ENOMEM;
	lists[0] = &offers[i];
	n = 1;
	for (int c = family->child[i]; c >= 0; c = family->sibling[c])
		lists[n++] = &offers[c];
	return extents_common(lists, n, common);
}

/* Overlays *below with `above`: the extents of `above` replace those of *below at the same addresses. */
static int overlay_extents(const struct extents *above, struct extents *below)
{
	struct extents sum = {NULL, 0, 0};
	int r = extents_cut(below, above, EXTENTS_ELSEWHERE, &sum);

	for (size_t i = 0; i < above->n && r == 0; i++)
		r = extents_add(&sum, above->v[i]);
	extents_sort(&sum);
	extents_free(below);
	*below = sum;
	return r;
}

static int copy_extents(const struct extents *from, struct extents *to)
{
	int r = 0;

	for (size_t i = 0; i < from->n && r == 0; i++)
		r = extents_add(to, from->v[i]);
	return r;
}

/* The round in which child c is forked, given the rounds of younger children: the earliest of them if
 * everything that c shares can be there too, else one before. */
static int find_round(struct inherit *inherit, struct inherit_passing *passing, int c,
		      const struct extents *shared)
{
	struct extents *round = &passing->rounds[passing->nrounds - 1];
	struct extents other = {NULL, 0, 0}, more = {NULL, 0, 0};
	int r = extents_cut(shared, round, EXTENTS_OTHER, &other);

	if (r == 0)
		r = extents_cut(&other, round, EXTENTS_ELSEWHERE, &more);
	/* `more` is a part of `other`: they are equal if they have the same length */
	if (r == 0 && passing->nrounds < ROUNDS_MAX && extents_bytes(&more) < extents_bytes(&other)) {
		struct extents *before = &passing->rounds[passing->nrounds];

		r = copy_extents(round, before);
		passing->nrounds++;
		if (r == 0)
			r = overlay_extents(&other, before);
	} else if (r == 0 && more.n) {
		r = overlay_extents(&more, round);
	}
	inherit->round[c] = passing->nrounds;
	extents_free(&other);
	extents_free(&more);
	return r;
}

/* Finds the rounds of process i, the last one first. Its children are in the order in which they were forked.
 * So its present memory is newer than what the youngest child shares, and so on: going backwards, no version
 * of a page occurs twice. (If numbers have been reused and the order differs, less is shared.) */
static int find_rounds(struct inherit *inherit, const struct family *family, size_t i, struct extents *offers)
{
	struct inherit_passing *passing = &inherit->passing[i];
	struct extents common = {NULL, 0, 0};
	auto_free int *order = calloc(inherit->n + 1, sizeof(*order));
	int n = 0, r = order ? find_common(family, i, offers, &common) : -ENOMEM;

	if (r == 0 && common.n) {
		passing->rounds = calloc(ROUNDS_MAX, sizeof(*passing->rounds));
		r = passing->rounds ? extents_in_common(&offers[i], &common, &passing->rounds[0]) : -ENOMEM;
		passing->nrounds = passing->rounds ? 1 : 0;
	}
	for (int c = family->child[i]; c >= 0 && r == 0 && common.n; c = family->sibling[c])
		order[n++] = c;
	while (n-- > 0 && r == 0) {
		struct extents shared = {NULL, 0, 0};

		r = extents_in_common(&offers[order[n]], &common, &shared);
		if (r == 0 && shared.n)
			r = find_round(inherit, passing, order[n], &shared);
		extents_free(&shared);
	}
	extents_free(&common);
	return r;
}

/* From here on in the order in which they happen. */
static void turn_rounds(struct inherit *inherit, const struct family *family, size_t i)
{
	struct inherit_passing *passing = &inherit->passing[i];

	for (int a = 0, b = passing->nrounds - 1; a < b; a++, b--) {
		struct extents swap = passing->rounds[a];

		passing->rounds[a] = passing->rounds[b];
		passing->rounds[b] = swap;
	}
	for (int c = family->child[i]; c >= 0; c = family->sibling[c])
		if (inherit->round[c])
			inherit->round[c] = passing->nrounds + 1 - inherit->round[c];
}

/* Replaces the mappings of the list that overlap `map` by one that covers all of them. Returns 0 if one of
 * them is of another kind. */
static int join_mappings(Pbeam__Memory *memory, Pbeam__Mapping *map)
{
	int first = find_last_mapping(memory, map->start), n = 0;

	if (first < 0 || memory->mappings[first]->end <= map->start)
		first++;
	while ((size_t)(first + n) < memory->n_mappings && memory->mappings[first + n]->start < map->end) {
		const Pbeam__Mapping *there = memory->mappings[first + n++];

		if (!is_alike(there, map) || !is_alike(map, there))
			return 0;
		if (there->start < map->start) {
			map->file_offset -= is_anonymous(map) ? 0 : map->start - there->start;
			map->start = there->start;
		}
		map->end = there->end > map->end ? there->end : map->end;
		map->prot |= there->prot;
	}
	memmove(&memory->mappings[first + 1], &memory->mappings[first + n],
		(memory->n_mappings - (size_t)(first + n)) * sizeof(Pbeam__Mapping *));
	memory->mappings[first] = map;
	memory->n_mappings += 1 - (size_t)n;
	return 1;
}

/* Extends what is passed on by a child's mapping, if any of `pages` is in it. */
static int lend_mapping(struct inherit_passing *passing, const Pbeam__Mapping *map,
			const struct extents *pages)
{
	Pbeam__Memory *memory = &passing->memory;
	struct extents inside = {NULL, 0, 0};
	Pbeam__Mapping *copy, **joined, **more;
	bool any;
	int r;

	if (!(map->flags & MAP_PRIVATE) || fill_mapping_is_kernels(map) || !map->n_pages ||
	    map->start >= map->end || find_whole(memory, map) >= 0)
		return 0;
	r = extents_clip(pages, map->start, map->end, &inside);
	any = inside.n > 0;
	extents_free(&inside);
	if (r < 0 || !any)
		return r;
	more = reallocarray(memory->mappings, memory->n_mappings + 1, sizeof(*more));
	memory->mappings = more ? more : memory->mappings;
	joined = reallocarray(passing->joined, passing->n_joined + 1, sizeof(*joined));
	passing->joined = joined ? joined : passing->joined;
	copy = more && joined ? malloc(sizeof(*copy)) : NULL;
	if (!copy)
		return -ENOMEM;
	*copy = *map;
	if (join_mappings(memory, copy))
		passing->joined[passing->n_joined++] = copy;
	else
		free(copy);
	return 0;
}

/* Builds the mappings that are passed on. */
static int find_memory(struct inherit *inherit, const struct family *family, Pbeam__Process *const *processes,
		       size_t i)
{
	struct inherit_passing *passing = &inherit->passing[i];
	const Pbeam__Memory *own = processes[i]->memory;
	int r = 0;

	passing->memory = *own;
	passing->memory.mappings = calloc(own->n_mappings + 1, sizeof(Pbeam__Mapping *));
	if (!passing->memory.mappings)
		return -ENOMEM;
	bytes_copy(passing->memory.mappings, own->mappings, own->n_mappings * sizeof(Pbeam__Mapping *));
	for (size_t m = 1; m < own->n_mappings; m++)
		if (own->mappings[m - 1]->end > own->mappings[m]->start)
			return 0; /* not sorted: not a valid image */
	for (int c = family->child[i]; c >= 0 && r == 0; c = family->sibling[c])
		for (size_t m = 0; m < processes[c]->memory->n_mappings && r == 0; m++)
			r = lend_mapping(passing, processes[c]->memory->mappings[m], &passing->rounds[0]);
	return r;
}

/* Handles process i after its children. Their offers are no longer needed; its own offer is what it has
 * when it is forked itself. */
static int survey_one(struct inherit *inherit, const struct family *family, Pbeam__Process *const *processes,
		      size_t i, struct extents *offers)
{
	int r = find_rounds(inherit, family, i, offers);

	turn_rounds(inherit, family, i);
	for (int c = family->child[i]; c >= 0; c = family->sibling[c])
		extents_free(&offers[c]);
	if (r < 0 || !inherit->passing[i].nrounds)
		return r;
	r = find_memory(inherit, family, processes, i);
	return r < 0 ? r : overlay_extents(&inherit->passing[i].rounds[0], &offers[i]);
}

int inherit_survey(struct inherit *inherit, Pbeam__Process *const *processes, const int *from, size_t n)
{
	auto_free int *child = calloc(n + 1, sizeof(*child)), *sibling = calloc(n + 1, sizeof(*sibling));
	struct extents *offers = calloc(n + 1, sizeof(*offers));
	const struct family family = {child, sibling};
	int r = 0;

	inherit->n = n;
	inherit->passing = calloc(n + 1, sizeof(*inherit->passing));
	inherit->round = calloc(n + 1, sizeof(*inherit->round));
	if (!child || !sibling || !offers || !inherit->passing || !inherit->round)
		r = -ENOMEM;
	else
		link_family(&family, processes, from, n);
	for (size_t i = n; i-- > 0 && r == 0;) {
		bool related = child[i] >= 0 || from[i] >= 0;

		if (related && processes[i]->memory)
			r = extents_of(processes[i]->memory, &offers[i]);
		if (r == 0 && child[i] >= 0)
			r = survey_one(inherit, &family, processes, i, offers);
	}
	for (size_t i = 0; i < n && offers; i++)
		extents_free(&offers[i]);
	free(offers);
	return r;
}

void inherit_free(struct inherit *inherit)
{
	for (size_t i = 0; i < inherit->n && inherit->passing; i++) {
		struct inherit_passing *passing = &inherit->passing[i];

		for (int round = 0; round < passing->nrounds; round++)
			extents_free(&passing->rounds[round]);
		free(passing->rounds);
		for (size_t j = 0; j < passing->n_joined; j++)
			free(passing->joined[j]);
		free(passing->joined);
		free(passing->memory.mappings);
	}
	free(inherit->passing);
	free(inherit->round);
	*inherit = (struct inherit){NULL, NULL, 0};
}

/* ---- requests ---- */

void inherit_state_free(struct inherit_state *state)
{
	if (!state)
		return;
	extents_free(&state->pages);
	free(state->prot);
	free(state);
}

/* A request under construction. */
struct difference {
	const struct inherit_state *state; /* or NULL */
	const Pbeam__Memory *wanted;
	struct extents target;	/* the wanted pages */
	struct extents missing; /* wanted pages that do not exist, in kept mappings */
	struct extents surplus; /* pages that exist and are not wanted */
	struct extents drops;	/* of these, the ones in kept mappings */
	struct inherit_request *out;
};

static void difference_free(struct difference *difference)
{
	extents_free(&difference->target);
	extents_free(&difference->missing);
	extents_free(&difference->surplus);
	extents_free(&difference->drops);
}

static int find_wanted(struct difference *difference, const Pbeam__Memory *saved,
		       const struct extents *common)
{
	const Pbeam__Memory *memory = difference->wanted;
	struct extents own = {NULL, 0, 0}, all = {NULL, 0, 0};
	int r = extents_of(saved, &own);

	if (r == 0 && !common) {
		difference->target = own;
		return 0;
	}
	/* Memory inherited from its own parent stays, although no child needs it. */
	if (r == 0 && difference->state)
		r = extents_cut(&own, &difference->state->pages, EXTENTS_SAME, &all);
	if (r == 0)
		r = overlay_extents(common, &all);
	for (size_t i = 0; i < memory->n_mappings && r == 0; i++)
		if (memory->mappings[i]->flags & MAP_PRIVATE && !fill_mapping_is_kernels(memory->mappings[i]))
			r = extents_clip(&all, memory->mappings[i]->start, memory->mappings[i]->end,
					 &difference->target);
	extents_sort(&difference->target);
	extents_free(&own);
	extents_free(&all);
	return r;
}

static int find_difference(struct difference *difference)
{
	const struct inherit_state *state = difference->state;
	int r;

	if (!state)
		return 0;
	r = extents_cut(&difference->target, &state->pages, EXTENTS_OTHER, &difference->missing);
	return r < 0 ? r
		     : extents_cut(&state->pages, &difference->target, EXTENTS_ELSEWHERE,
				   &difference->surplus);
}

/* Gives the mapping its pages of `list`, as one allocation: the list of pointers, then the pages. */
static int set_pages(Pbeam__Mapping *map, const struct extents *list)
{
	struct extents mine = {NULL, 0, 0};
	int r = extents_clip(list, map->start, map->end, &mine);

	if (r == 0 && mine.n) {
		Pbeam__Pages **pages = calloc(mine.n, sizeof(Pbeam__Pages *) + sizeof(Pbeam__Pages));
		Pbeam__Pages *each = (Pbeam__Pages *)(void *)(pages ? pages + mine.n : NULL);

		r = pages ? 0 : -ENOMEM;
		for (size_t i = 0; i < mine.n && r == 0; i++) {
			pbeam__pages__init(&each[i]);
			each[i].address = mine.v[i].start;
			each[i].count = (mine.v[i].end - mine.v[i].start) / IMAGE_PAGE;
			image_pages_set_place(&each[i], mine.v[i].start + (uint64_t)mine.v[i].shift);
			pages[i] = &each[i];
		}
		if (r == 0) {
			map->pages = pages;
			map->n_pages = mine.n;
		}
	}
	extents_free(&mine);
	return r;
}

/* Decides what to do with mapping i of the copies. *prot is set to the mapping's protection afterwards. */
static int decide_mapping(struct difference *difference, size_t i, uint32_t *prot)
{
	struct inherit_request *out = difference->out;
	const struct inherit_state *state = difference->state;
	Pbeam__Mapping *map = &out->mappings[i];
	int at = state ? find_whole(state->like, map) : -1, r;
	bool kept = at >= 0;

	r = set_pages(map, kept ? &difference->missing : &difference->target);
	*prot = fill_mapping_prot_needed(map);
	if (r < 0 || !kept)
		return r;
	pbeam__kept_mapping__init(&out->kept[out->n_kept]);
	out->kept[out->n_kept].index = (uint32_t)i;
	out->kept[out->n_kept].prot = state->prot[at];
	out->kept_list[out->n_kept] = &out->kept[out->n_kept];
	out->n_kept++;
	if ((state->prot[at] & *prot) == *prot)
		*prot = state->prot[at];
	return extents_clip(&difference->surplus, map->start, map->end, &difference->drops);
}

static int list_drops(struct inherit_request *out, const struct extents *drops)
{
	out->dropped = calloc(drops->n + 1, sizeof(*out->dropped));
	out->dropped_list = calloc(drops->n + 1, sizeof(Pbeam__Range *));
	if (!out->dropped || !out->dropped_list)
		return -ENOMEM;
	for (size_t i = 0; i < drops->n; i++) {
		pbeam__range__init(&out->dropped[i]);
		out->dropped[i].address = drops->v[i].start;
		out->dropped[i].count = (drops->v[i].end - drops->v[i].start) / IMAGE_PAGE;
		out->dropped_list[out->n_dropped++] = &out->dropped[i];
	}
	return 0;
}

static int choose_all(struct difference *difference, uint32_t *prot)
{
	struct inherit_request *out = difference->out;
	size_t n = difference->wanted->n_mappings;
	int r = 0;

	out->mappings = calloc(n + 1, sizeof(*out->mappings));
	out->memory.mappings = calloc(n + 1, sizeof(Pbeam__Mapping *));
	out->kept = calloc(n + 1, sizeof(*out->kept));
	out->kept_list = calloc(n + 1, sizeof(Pbeam__KeptMapping *));
	if (!out->mappings || !out->memory.mappings || !out->kept || !out->kept_list)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		out->mappings[i] = *difference->wanted->mappings[i];
		out->mappings[i].n_pages = 0;
		out->mappings[i].pages = NULL;
		out->memory.mappings[i] = &out->mappings[i];
	}
	out->n_mappings = n;
	for (size_t i = 0; i < n && r == 0; i++)
		if (!fill_mapping_is_kernels(&out->mappings[i]) &&
		    out->mappings[i].kind != PBEAM__MAPPING__KIND__VSYSCALL)
			r = decide_mapping(difference, i, &prot[i]);
	return r < 0 ? r : list_drops(out, &difference->drops);
}

int inherit_request(const struct inherit_state *state, const Pbeam__Process *process,
		    const struct inherit_passing *passing, int round, struct inherit_request *out,
		    struct inherit_state **next)
{
	const Pbeam__Memory *memory = round ? &passing->memory : process->memory;
	const struct extents *common = round ? &passing->rounds[round - 1] : NULL;
	struct difference difference = {.wanted = memory, .out = out};
	struct inherit_state *after;
	int r;

	memset(out, 0, sizeof(*out));
	out->process = *process;
	if (state && same_vdso(state->like, memory))
		difference.state = state;
	out->inherits = difference.state != NULL;
	if (!difference.state && !common)
		return 0;
	out->memory = *memory;
	out->memory.mappings = NULL;
	out->process.memory = &out->memory;
	after = calloc(1, sizeof(*after));
	if (after)
		after->prot = calloc(memory->n_mappings + 1, sizeof(*after->prot));
	r = after && after->prot ? find_wanted(&difference, process->memory, common) : -ENOMEM;
	if (r == 0)
		r = find_difference(&difference);
	if (r == 0)
		r = choose_all(&difference, after->prot);
	if (r == 0 && common) {
		after->like = memory;
		after->pages = difference.target;
		difference.target = (struct extents){NULL, 0, 0};
		*next = after;
		after = NULL;
	}
	inherit_state_free(after);
	difference_free(&difference);
	return r;
}

void inherit_request_free(struct inherit_request *request)
{
	for (size_t i = 0; i < request->n_mappings; i++)
		free(request->mappings[i].pages);
	if (request->mappings)
		free(request->memory.mappings);
	free(request->mappings);
	free(request->kept);
	free(request->kept_list);
	free(request->dropped);
	free(request->dropped_list);
	memset(request, 0, sizeof(*request));
}
