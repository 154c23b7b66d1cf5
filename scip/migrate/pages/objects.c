#include "scip/migrate/pages/objects.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/checkpoint/group.h"

enum { PAGE = 4096, WORD_BITS = 64, OBJECTS_MAX = 4096 };

/* A set of pages. */
struct set {
	uint64_t *words;
	uint64_t pages;
};

/* The object as a process maps it. */
struct view {
	struct tracked *t; /* NULL: not watched */
	pid_t rpid;
	uint64_t start, end, offset;
	bool marked; /* what is written through it is told */
	struct track_range range;
};

struct object {
	Pbeam__SharedRef ref; /* dev, ino and kind: which it is */
	uint32_t id;
	struct set due;	 /* for the next round */
	struct set sent; /* ever */
	struct notes notes;
	bool missed;
	struct view *views;
	size_t n;
};

/* An object at the end, and those that it can be read through then. */
struct last {
	struct object *object; /* NULL: it has not gone ahead */
	struct set set;
	struct view *views;
	struct tracked *readers;
	size_t n;
	bool whole;
};

struct ahead_objects {
	struct object *v;
	size_t n;
	struct last *lasts;
	size_t nlasts;
};

/* ---- sets ---- */

static int set_init(struct set *set, uint64_t pages)
{
	set->pages = pages;
	set->words = calloc(pages / WORD_BITS + 1, sizeof(*set->words));
	return set->words ? 0 : -ENOMEM;
}

static bool set_has(const struct set *set, uint64_t page)
{
	return set->words[page / WORD_BITS] >> page % WORD_BITS & 1;
}

static void set_add(struct set *set, uint64_t page, uint64_t end)
{
	for (end = end < set->pages ? end : set->pages; page < end; page++)
		set->words[page / WORD_BITS] |= UINT64_C(1) << page % WORD_BITS;
}

/* The first run of pages from *page on: *page is its beginning, the return its end; 0: there is none. */
static uint64_t set_next(const struct set *set, uint64_t *page)
{
	uint64_t end;

	while (*page < set->pages && !set_has(set, *page))
		*page += set->words[*page / WORD_BITS] ? 1 : WORD_BITS - *page % WORD_BITS;
	if (*page >= set->pages)
		return 0;
	for (end = *page; end < set->pages && set_has(set, end);)
		end += end % WORD_BITS == 0 && ~set->words[end / WORD_BITS] == 0 ? WORD_BITS : 1;
	return end < set->pages ? end : set->pages;
}

static uint64_t set_count(const struct set *set)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < set->pages / WORD_BITS + 1; i++)
		n += (uint64_t)__builtin_popcountll(set->words[i]);
	return n;
}

static void set_empty(struct set *set)
{
	memset(set->words, 0, (set->pages / WORD_BITS + 1) * sizeof(*set->words));
}

/* ---- the skeleton ---- */

struct ahead_objects *ahead_objects_new(void)
{
	return calloc(1, sizeof(struct ahead_objects));
}

static void free_object(struct object *object)
{
	free(object->due.words);
	free(object->sent.words);
	notes_free(&object->notes);
	free(object->views);
}

static void free_lasts(struct ahead_objects *objects)
{
	for (size_t i = 0; i < objects->nlasts; i++) {
		free(objects->lasts[i].set.words);
		free(objects->lasts[i].views);
		free(objects->lasts[i].readers);
	}
	free(objects->lasts);
	objects->lasts = NULL;
	objects->nlasts = 0;
}

void ahead_objects_free(struct ahead_objects *objects)
{
	if (!objects)
		return;
	for (size_t i = 0; i < objects->n; i++)
		free_object(&objects->v[i]);
	free(objects->v);
	free_lasts(objects);
	free(objects);
}

static void add_pages(struct set *set, const Pbeam__SharedMemory *there)
{
	for (size_t i = 0; i < there->n_pages; i++)
		set_add(set, there->pages[i]->address / PAGE,
			there->pages[i]->address / PAGE + there->pages[i]->count);
}

static struct view view_of(const struct shared_use *use, const struct object *object)
{
	const Pbeam__SharedRef *ref = use->ref;

	return (struct view){.rpid = use->member->rpid.n,
			     .start = ref->start,
			     .end = ref->end,
			     .offset = ref->offset,
			     .range = {.start = ref->start - ref->offset,
				       .end = ref->end,
				       .looked = true,
				       .notes = object->notes,
				       .object = object->id}};
}

static int make_object(struct object *object, const struct shared_object *from, uint32_t id)
{
	const uint64_t pages = (from->size + PAGE - 1) / PAGE;

	*object = (struct object){.id = id};
	pbeam__shared_ref__init(&object->ref);
	object->ref.dev = from->uses[0].ref->dev;
	object->ref.ino = from->uses[0].ref->ino;
	object->ref.kind = from->uses[0].ref->kind;
	object->views = calloc(from->n, sizeof(*object->views));
	if (!object->views || set_init(&object->due, pages) < 0 || set_init(&object->sent, pages) < 0)
		return -ENOMEM;
	notes_init(&object->notes, pages * PAGE);
	add_pages(&object->due, from->there);
	for (object->n = 0; object->n < from->n; object->n++)
		object->views[object->n] = view_of(&from->uses[object->n], object);
	return 0;
}

int ahead_objects_begin(struct ahead_objects *objects, struct shared_object *list, size_t n, struct err *err)
{
	objects->v = calloc(n, sizeof(*objects->v));
	if (!objects->v)
		return err_code(err, -ENOMEM, "shared memory");
	for (size_t i = 0; i < n && objects->n < OBJECTS_MAX; i++) {
		struct object *object = &objects->v[objects->n];

		if (!list[i].there)
			continue;
		if (make_object(object, &list[i], (uint32_t)objects->n + 1) < 0) {
			free_object(object);
			return err_code(err, -ENOMEM, "shared memory");
		}
		list[i].there->ahead = object->id;
		objects->n++;
	}
	/* From here on they stay where they are. */
	for (size_t i = 0; i < objects->n; i++)
		for (size_t j = 0; j < objects->v[i].n; j++)
			objects->v[i].views[j].range.missed = &objects->v[i].missed;
	return 0;
}

void ahead_objects_watch(struct ahead_objects *objects, struct tracked *t)
{
	for (size_t i = 0; i < objects->n && t->uffd >= 0; i++)
		for (size_t j = 0; j < objects->v[i].n; j++) {
			struct view *view = &objects->v[i].views[j];

			if (view->rpid != t->rpid.n)
				continue;
			view->t = t;
			view->marked = track_watch(t, view->start, view->end);
		}
}

/* ---- rounds ---- */

struct marking {
	struct set *set;
	const struct view *view;
};

static void mark(void *arg, uint64_t start, uint64_t end)
{
	const struct marking *marking = arg;
	const uint64_t shift = marking->view->offset - marking->view->start;

	set_add(marking->set, (start + shift) / PAGE, (end + shift) / PAGE);
}

/* What the marks tell of the object; with `again` they are set anew. */
static void look(const struct object *object, struct set *set, bool again)
{
	for (size_t i = 0; i < object->n; i++) {
		struct view *view = &object->views[i];
		struct marking marking = {set, view};

		if (view->t && view->t->pagemap < 0)
			view->t = NULL; /* it has ended, or is another program */
		if (!view->t || !view->marked)
			continue;
		if (!track_piece(view->t, view->start, view->end, again, mark, &marking))
			view->t = NULL;
	}
}

uint64_t ahead_objects_due(const struct ahead_objects *objects)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < objects->n; i++) {
		const struct object *object = &objects->v[i];
		struct set set;

		if (set_init(&set, object->due.pages) < 0)
			continue;
		memcpy(set.words, object->due.words, (set.pages / WORD_BITS + 1) * sizeof(*set.words));
		look(object, &set, false);
		pages += set_count(&set);
		free(set.words);
	}
	return pages * PAGE;
}

uint64_t ahead_objects_bytes(const struct ahead_objects *objects)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < objects->n; i++)
		pages += set_count(&objects->v[i].sent);
	return pages * PAGE;
}

/* The first that shows the page. */
static struct view *view_at(struct view *views, size_t n, uint64_t offset)
{
	for (size_t i = 0; i < n; i++)
		if (views[i].t && views[i].offset <= offset &&
		    offset - views[i].offset < views[i].end - views[i].start)
			return &views[i];
	return NULL;
}

/* All pages of the set, read through these. False: some are shown by none. */
static int put(struct page_sender *sender, const struct set *set, struct view *views, size_t n, bool *whole)
{
	struct view *last = NULL;
	uint64_t at = 0, end;
	int r = 0;

	*whole = true;
	for (; r == 0 && (end = set_next(set, &at)) != 0; at = end) {
		struct view *view = view_at(views, n, at * PAGE);
		uint64_t shift;

		if (!view) {
			*whole = false;
			end = at + 1;
			continue;
		}
		shift = view->start - view->offset;
		if ((view->end - shift) / PAGE < end)
			end = (view->end - shift) / PAGE;
		if (last && view->t != last->t)
			r = page_sender_flush(sender);
		last = view;
		if (r == 0)
			r = page_sender_put(sender, view->t, &view->range, at * PAGE + shift,
					    end * PAGE + shift);
	}
	return r < 0 ? r : page_sender_flush(sender);
}

int ahead_objects_round(struct ahead_objects *objects, struct page_sender *sender)
{
	int r = 0;

	for (size_t i = 0; i < objects->n && r == 0; i++) {
		struct object *object = &objects->v[i];
		bool whole;

		look(object, &object->due, true);
		for (uint64_t w = 0; w < object->due.pages / WORD_BITS + 1; w++)
			object->sent.words[w] |= object->due.words[w];
		r = put(sender, &object->due, object->views, object->n, &whole);
		set_empty(&object->due);
	}
	return r;
}

/* ---- the end ---- */

static struct object *find_object(struct ahead_objects *objects, const struct shared_object *there)
{
	for (size_t i = 0; i < objects->n; i++)
		if (shared_is_same(&objects->v[i].ref, there->uses[0].ref))
			return &objects->v[i];
	return NULL;
}

static int begin_last(struct last *last, struct object *object, const struct shared_object *there)
{
	const uint64_t pages = (there->size + PAGE - 1) / PAGE;

	*last = (struct last){.object = object, .n = there->n}; /* freed with the objects: threads use it */
	last->views = calloc(there->n, sizeof(*last->views));
	last->readers = calloc(there->n, sizeof(*last->readers));
	if (!last->views || !last->readers || set_init(&last->set, pages) < 0)
		return -ENOMEM;
	object->missed = false;
	for (size_t i = 0; i < there->n; i++) {
		last->readers[i] = (struct tracked){.rpid = there->uses[i].member->rpid,
						    .vpid = there->uses[i].member->vpid,
						    .uffd = -1,
						    .pagemap = -1,
						    .mem = -1};
		last->views[i] = view_of(&there->uses[i], object);
		last->views[i].t = &last->readers[i];
		last->views[i].range.missed = &object->missed;
	}
	add_pages(&last->set, there->there);
	for (uint64_t at = 0, end; (end = set_next(&object->sent, &at)) != 0; at = end)
		set_add(&last->set, at, end);
	return 0;
}

static int tell_sent(const struct set *set, Pbeam__SharedMemory *there)
{
	for (uint64_t at = 0, end; (end = set_next(set, &at)) != 0; at = end) {
		Pbeam__Range *range = message_add(there, sent, pbeam__range__descriptor);

		if (!range)
			return -ENOMEM;
		range->address = at * PAGE;
		range->count = end - at;
	}
	return 0;
}

static int put_last(struct last *last, struct object *object, const struct shared_object *there,
		    struct page_sender *sender)
{
	int r = begin_last(last, object, there);

	return r < 0 ? r : put(sender, &last->set, last->views, last->n, &last->whole);
}

int ahead_objects_last(struct ahead_objects *objects, struct page_sender *sender, struct shared_object *list,
		       size_t n, struct err *err)
{
	int r = 0, done;

	free_lasts(objects); /* they have run on, and this is the next try */
	objects->lasts = calloc(n + 1, sizeof(*objects->lasts));
	objects->nlasts = objects->lasts ? n : 0;
	for (size_t i = 0; i < objects->nlasts && r == 0; i++) {
		struct object *object = list[i].there ? find_object(objects, &list[i]) : NULL;

		if (object)
			r = put_last(&objects->lasts[i], object, &list[i], sender);
	}
	done = page_sender_finish(sender, err);
	r = !objects->lasts ? -ENOMEM : r < 0 ? r : done;
	for (size_t i = 0; i < objects->nlasts && r == 0; i++) {
		const struct last *last = &objects->lasts[i];

		if (last->object && last->whole && !last->object->missed) {
			list[i].there->ahead = last->object->id;
			r = tell_sent(&last->set, list[i].there);
		} else if (last->object) {
			log_info("migrate: shared memory %u is sent whole at the end", last->object->id);
		}
	}
	return r < 0 && !err->code ? err_code(err, r, "send shared memory") : r;
}
