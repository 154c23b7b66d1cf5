#include "scip/precopy/shared_pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/capture/group.h"
#include "scip/precopy/notes.h"

enum { WORD_BITS = 64, OBJECTS_MAX = 4096 };

/* Pages of an object, one bit each. */
struct page_set {
	uint64_t *words;
	uint64_t pages;
};

/* A process's mapping of an object. */
struct object_view {
	struct tracked *t; /* NULL: not tracked */
	pid_t rpid;
	uint64_t start, end, offset;
	bool marked; /* writes through it are tracked */
	struct track_range range;
};

struct copied_object {
	Pbeam__SharedRef ref; /* dev, ino and kind identify the object */
	uint32_t id;
	struct page_set due;  /* to be sent in the next round */
	struct page_set sent; /* in any round */
	struct notes notes;
	bool missed;
	struct object_view *views;
	size_t n;
};

/* An object at the end, with the processes that it can be read through then. */
struct last_read {
	struct copied_object *object; /* NULL: it was not pre-copied */
	struct page_set set;
	struct object_view *views;
	struct tracked *readers;
	size_t n;
	bool whole;
};

struct shared_pages {
	struct copied_object *v;
	size_t n;
	struct last_read *lasts;
	size_t nlasts;
};

/* ---- sets ---- */

static int page_set_init(struct page_set *set, uint64_t pages)
{
	set->pages = pages;
	set->words = calloc(pages / WORD_BITS + 1, sizeof(*set->words));
	return set->words ? 0 : -ENOMEM;
}

static bool page_set_has(const struct page_set *set, uint64_t page)
{
	return set->words[page / WORD_BITS] >> page % WORD_BITS & 1;
}

static void page_set_add(struct page_set *set, uint64_t page, uint64_t end)
{
	for (end = end < set->pages ? end : set->pages; page < end; page++)
		set->words[page / WORD_BITS] |= UINT64_C(1) << page % WORD_BITS;
}

/* Finds the first run of pages from *page on. Sets *page to its beginning, returns its end, or 0 for none. */
static uint64_t page_set_next(const struct page_set *set, uint64_t *page)
{
	uint64_t end;

	while (*page < set->pages && !page_set_has(set, *page))
		*page += set->words[*page / WORD_BITS] ? 1 : WORD_BITS - *page % WORD_BITS;
	if (*page >= set->pages)
		return 0;
	for (end = *page; end < set->pages && page_set_has(set, end);)
		end += end % WORD_BITS == 0 && ~set->words[end / WORD_BITS] == 0 ? WORD_BITS : 1;
	return end < set->pages ? end : set->pages;
}

static uint64_t page_set_count(const struct page_set *set)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < set->pages / WORD_BITS + 1; i++)
		n += (uint64_t)__builtin_popcountll(set->words[i]);
	return n;
}

static void page_set_empty(struct page_set *set)
{
	memset(set->words, 0, (set->pages / WORD_BITS + 1) * sizeof(*set->words));
}

/* ---- the skeleton ---- */

struct shared_pages *shared_pages_new(void)
{
	return calloc(1, sizeof(struct shared_pages));
}

static void free_object(struct copied_object *object)
{
	free(object->due.words);
	free(object->sent.words);
	notes_free(&object->notes);
	free(object->views);
}

static void free_lasts(struct shared_pages *shared)
{
	for (size_t i = 0; i < shared->nlasts; i++) {
		free(shared->lasts[i].set.words);
		free(shared->lasts[i].views);
		free(shared->lasts[i].readers);
	}
	free(shared->lasts);
	shared->lasts = NULL;
	shared->nlasts = 0;
}

void shared_pages_free(struct shared_pages *shared)
{
	if (!shared)
		return;
	for (size_t i = 0; i < shared->n; i++)
		free_object(&shared->v[i]);
	free(shared->v);
	free_lasts(shared);
	free(shared);
}

static void add_listed_pages(struct page_set *set, const Pbeam__SharedMemory *there)
{
	for (size_t i = 0; i < there->n_pages; i++)
		page_set_add(set, there->pages[i]->address / PAGE,
			     there->pages[i]->address / PAGE + there->pages[i]->count);
}

static struct object_view view_of(const struct shared_use *use, const struct copied_object *object)
{
	const Pbeam__SharedRef *ref = use->ref;

	return (struct object_view){.rpid = use->member->rpid.n,
				    .start = ref->start,
				    .end = ref->end,
				    .offset = ref->offset,
				    .range = {.start = ref->start - ref->offset,
					      .end = ref->end,
					      .read = true,
					      .object = object->id}};
}

/* `object` must stay where it is afterwards. */
static void share_state(struct copied_object *object, struct object_view *view)
{
	view->range.notes = &object->notes;
	view->range.missed = &object->missed;
}

static int make_object(struct copied_object *object, const struct shared_object *from, uint32_t id)
{
	const uint64_t pages = (from->size + PAGE - 1) / PAGE;

	*object = (struct copied_object){.id = id};
	pbeam__shared_ref__init(&object->ref);
	object->ref.dev = from->uses[0].ref->dev;
	object->ref.ino = from->uses[0].ref->ino;
	object->ref.kind = from->uses[0].ref->kind;
	object->views = calloc(from->n, sizeof(*object->views));
	if (!object->views || page_set_init(&object->due, pages) < 0 ||
	    page_set_init(&object->sent, pages) < 0)
		return -ENOMEM;
	notes_init(&object->notes, pages * PAGE);
	add_listed_pages(&object->due, from->there);
	for (object->n = 0; object->n < from->n; object->n++)
		object->views[object->n] = view_of(&from->uses[object->n], object);
	return 0;
}

int shared_pages_begin(struct shared_pages *shared, struct shared_object *list, size_t n, struct err *err)
{
	shared->v = calloc(n, sizeof(*shared->v));
	if (!shared->v)
		return err_code(err, -ENOMEM, "shared memory");
	for (size_t i = 0; i < n && shared->n < OBJECTS_MAX; i++) {
		struct copied_object *object = &shared->v[shared->n];

		if (!list[i].there)
			continue;
		if (make_object(object, &list[i], (uint32_t)shared->n + 1) < 0) {
			free_object(object);
			return err_code(err, -ENOMEM, "shared memory");
		}
		list[i].there->precopied = object->id;
		shared->n++;
	}
	/* the objects have their final addresses */
	for (size_t i = 0; i < shared->n; i++)
		for (size_t j = 0; j < shared->v[i].n; j++)
			share_state(&shared->v[i], &shared->v[i].views[j]);
	return 0;
}

void shared_pages_watch(struct shared_pages *shared, struct tracked *t)
{
	for (size_t i = 0; i < shared->n && t->uffd >= 0; i++)
		for (size_t j = 0; j < shared->v[i].n; j++) {
			struct object_view *view = &shared->v[i].views[j];

			if (view->rpid != t->rpid.n)
				continue;
			view->t = t;
			view->marked = track_register(t, view->start, view->end);
		}
}

/* ---- rounds ---- */

struct marking {
	struct page_set *set;
	const struct object_view *view;
};

static void mark_written(void *arg, uint64_t start, uint64_t end)
{
	const struct marking *marking = arg;
	const uint64_t shift = marking->view->offset - marking->view->start;

	page_set_add(marking->set, (start + shift) / PAGE, (end + shift) / PAGE);
}

/* Adds the pages that were written according to the tracking; `again` write-protects them again. */
static void collect_written(const struct copied_object *object, struct page_set *set, bool again)
{
	for (size_t i = 0; i < object->n; i++) {
		struct object_view *view = &object->views[i];
		struct marking marking = {set, view};

		if (view->t && view->t->pagemap < 0)
			view->t = NULL; /* the process has ended or executed another program */
		if (!view->t || !view->marked)
			continue;
		if (!track_scan_shared(view->t, view->start, view->end, again, mark_written, &marking))
			view->t = NULL;
	}
}

uint64_t shared_pages_due(const struct shared_pages *shared)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < shared->n; i++) {
		const struct copied_object *object = &shared->v[i];
		struct page_set set;

		if (page_set_init(&set, object->due.pages) < 0)
			continue;
		memcpy(set.words, object->due.words, (set.pages / WORD_BITS + 1) * sizeof(*set.words));
		collect_written(object, &set, false);
		pages += page_set_count(&set);
		free(set.words);
	}
	return pages * PAGE;
}

uint64_t shared_pages_bytes(const struct shared_pages *shared)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < shared->n; i++)
		pages += page_set_count(&shared->v[i].sent);
	return pages * PAGE;
}

/* Finds a mapping that shows the page. */
static struct object_view *view_at(struct object_view *views, size_t n, uint64_t offset)
{
	for (size_t i = 0; i < n; i++)
		if (views[i].t && views[i].offset <= offset &&
		    offset - views[i].offset < views[i].end - views[i].start)
			return &views[i];
	return NULL;
}

/* Queues all pages of the set, read through these mappings. *whole: each page is in one of them. */
static int queue_pages(struct page_sender *sender, const struct page_set *set, struct object_view *views,
		       size_t n, bool *whole)
{
	struct object_view *last = NULL;
	uint64_t at = 0, end;
	int r = 0;

	*whole = true;
	for (; r == 0 && (end = page_set_next(set, &at)) != 0; at = end) {
		struct object_view *view = view_at(views, n, at * PAGE);
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

int shared_pages_send_round(struct shared_pages *shared, struct page_sender *sender)
{
	int r = 0;

	for (size_t i = 0; i < shared->n && r == 0; i++) {
		struct copied_object *object = &shared->v[i];
		bool whole;

		collect_written(object, &object->due, true);
		for (uint64_t w = 0; w < object->due.pages / WORD_BITS + 1; w++)
			object->sent.words[w] |= object->due.words[w];
		r = queue_pages(sender, &object->due, object->views, object->n, &whole);
		page_set_empty(&object->due);
	}
	return r;
}

/* ---- the end ---- */

static struct copied_object *find_copied_object(struct shared_pages *shared,
						const struct shared_object *there)
{
	for (size_t i = 0; i < shared->n; i++)
		if (shared_is_same(&shared->v[i].ref, there->uses[0].ref))
			return &shared->v[i];
	return NULL;
}

static int begin_last(struct last_read *last, struct copied_object *object, const struct shared_object *there)
{
	const uint64_t pages = (there->size + PAGE - 1) / PAGE;

	*last = (struct last_read){.object = object,
				   .n = there->n}; /* freed by shared_pages_free(): threads use it */
	last->views = calloc(there->n, sizeof(*last->views));
	last->readers = calloc(there->n, sizeof(*last->readers));
	if (!last->views || !last->readers || page_set_init(&last->set, pages) < 0)
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
		share_state(object, &last->views[i]);
	}
	add_listed_pages(&last->set, there->there);
	for (uint64_t at = 0, end; (end = page_set_next(&object->sent, &at)) != 0; at = end)
		page_set_add(&last->set, at, end);
	return 0;
}

static int list_sent(const struct page_set *set, Pbeam__SharedMemory *there)
{
	for (uint64_t at = 0, end; (end = page_set_next(set, &at)) != 0; at = end) {
		Pbeam__Range *range = message_add(there, sent, pbeam__range__descriptor);

		if (!range)
			return -ENOMEM;
		range->address = at * PAGE;
		range->count = end - at;
	}
	return 0;
}

static int queue_last(struct last_read *last, struct copied_object *object, const struct shared_object *there,
		      struct page_sender *sender)
{
	int r = begin_last(last, object, there);

	return r < 0 ? r : queue_pages(sender, &last->set, last->views, last->n, &last->whole);
}

int shared_pages_send_last(struct shared_pages *shared, struct page_sender *sender,
			   struct shared_object *list, size_t n, struct err *err)
{
	int r = 0, done;

	free_lasts(shared); /* of an attempt after which the processes ran on */
	shared->lasts = calloc(n + 1, sizeof(*shared->lasts));
	shared->nlasts = shared->lasts ? n : 0;
	for (size_t i = 0; i < shared->nlasts && r == 0; i++) {
		struct copied_object *object = list[i].there ? find_copied_object(shared, &list[i]) : NULL;

		if (object)
			r = queue_last(&shared->lasts[i], object, &list[i], sender);
	}
	done = page_sender_finish(sender, err);
	r = !shared->lasts ? -ENOMEM : r < 0 ? r : done;
	for (size_t i = 0; i < shared->nlasts && r == 0; i++) {
		const struct last_read *last = &shared->lasts[i];

		if (last->object && last->whole && !last->object->missed) {
			list[i].there->precopied = last->object->id;
			r = list_sent(&last->set, list[i].there);
		} else if (last->object) {
			log_info("migrate: shared memory %u is sent whole at the end", last->object->id);
		}
	}
	return r < 0 && !(err && err->code) ? err_code(err, r, "send shared memory") : r;
}
