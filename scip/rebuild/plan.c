/* See plan.h. Nothing here touches a process; the unit test runs plans in a model of the kernel's rules. */
#include "scip/rebuild/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"

enum { ANY_SESSION = 0, NO_NODE = -2, MAX_PROCESSES = 100000 };

struct index_entry {
	int32_t vpid;
	int index;
};

/* The planner's state of each process of the image. */
struct candidate {
	int parent;	    /* index, or PLAN_KEEPER */
	int child, sibling; /* first child, next of the same parent; -1 */
	int32_t need;	    /* session it must be forked in, or ANY_SESSION */
	bool built;
	int round; /* last round of memory that its children share (inherit.h) */
};

struct planner {
	struct plan *plan;
	Pbeam__Process *const *processes;
	int n;
	const bool *there; /* for each process: it exists already; NULL: none does */
	struct candidate *candidates;
	struct index_entry *index; /* by vpid */
	struct err *err;
};

static int compare_entries(const void *a, const void *b)
{
	const struct index_entry *x = a, *y = b;

	return x->vpid < y->vpid ? -1 : x->vpid > y->vpid;
}

/* The index of the process with this number, or -1. */
static int find_node(const struct planner *planner, int32_t vpid)
{
	struct index_entry key = {vpid, 0};
	const struct index_entry *hit;

	hit = bsearch(&key, planner->index, (size_t)planner->n, sizeof(key), compare_entries);
	return hit ? hit->index : -1;
}

/* A process of the image, not a helper, that needs no steps. */
static bool is_there(const struct planner *planner, int node)
{
	return planner->there && node >= 0 && node < planner->n && planner->there[node];
}

static int add_step(struct planner *planner, enum plan_step_kind kind, int node, int other, int32_t number)
{
	struct plan *plan = planner->plan;

	if (plan->nsteps == plan->step_room) {
		int room = plan->step_room ? plan->step_room * 2 : 64;
		struct plan_step *more = realloc(plan->steps, (size_t)room * sizeof(*more));

		if (!more)
			return err_code(planner->err, -ENOMEM, "plan of the processes");
		plan->steps = more;
		plan->step_room = room;
	}
	plan->steps[plan->nsteps++] = (struct plan_step){kind, node, other, number};
	return 0;
}

/* Adds a helper with number `vpid` (0: nameless). Returns its index, or -ENOMEM. */
static int add_helper(struct planner *planner, int32_t vpid)
{
	struct plan *plan = planner->plan;

	if (plan->nnodes == plan->node_room) {
		int room = plan->node_room * 2;
		struct plan_node *more = realloc(plan->nodes, (size_t)room * sizeof(*more));

		if (!more)
			return err_code(planner->err, -ENOMEM, "plan of the processes");
		plan->nodes = more;
		plan->node_room = room;
	}
	plan->nodes[plan->nnodes] = (struct plan_node){.vpid = vpid, .parent = NO_NODE, .exe = -1};
	return plan->nnodes++;
}

/* Makes `from` (or the keeper) fork `node`, which is then in the same session and group. The child of a
 * process that exists already inherits no useful memory, so it executes its program. */
static int plan_fork(struct planner *planner, int node, int from)
{
	struct plan_node *child = &planner->plan->nodes[node];

	child->parent = from;
	if (is_there(planner, node)) {
		child->session = child->process->vsid;
		child->group = child->process->vpgid;
		return 0;
	}
	if (from == PLAN_KEEPER) {
		child->session = planner->plan->keeper_session;
		child->group = planner->plan->above ? planner->plan->above->group : 0;
		child->exe = -1;
		return add_step(planner, PLAN_HUSK, node, from, 0);
	}
	child->session = planner->plan->nodes[from].session;
	child->group = planner->plan->nodes[from].group;
	child->exe = is_there(planner, from) ? -1 : planner->plan->nodes[from].exe;
	return add_step(planner, PLAN_FORK, node, from, 0);
}

static int set_session(struct planner *planner, int node)
{
	struct plan_node *self = &planner->plan->nodes[node];

	self->session = self->group = self->vpid;
	return add_step(planner, PLAN_SETSID, node, node, 0);
}

static int set_group(struct planner *planner, int node, int32_t group)
{
	struct plan_node *self = &planner->plan->nodes[node];

	self->group = group;
	return add_step(planner, PLAN_SETPGID, node, node, group == self->vpid ? 0 : group);
}

static int end_helper(struct planner *planner, int node)
{
	int parent = planner->plan->nodes[node].parent, r;

	r = add_step(planner, PLAN_EXIT, node, node, 0);
	if (r == 0 && parent != PLAN_KEEPER)
		r = add_step(planner, PLAN_REAP, node, parent, 0);
	planner->plan->nodes[node].session = NO_NODE;
	return r;
}

static bool is_session_leader(const Pbeam__Process *process)
{
	return process->vsid == process->vpid;
}

static bool is_ancestor_or_self(const struct planner *planner, int ancestor, int node)
{
	while (node >= 0 && node != ancestor)
		node = node < planner->n ? planner->candidates[node].parent
					 : planner->plan->nodes[node].parent;
	return node == ancestor;
}

/* True if child `c` of `i` must have been adopted as an orphan: it is in a session that `i` never was in. */
static bool is_adopted(const struct planner *planner, int i, int c)
{
	const Pbeam__Process *parent = planner->processes[i];
	int32_t need = planner->candidates[c].need;
	int leader;

	if (need == ANY_SESSION || need == parent->vsid)
		return false;
	if (!is_session_leader(parent))
		return true;
	leader = find_node(planner, need);
	return parent->child_subreaper && (leader < 0 || is_ancestor_or_self(planner, i, leader));
}

/* True if this number belongs to a process of the image that does not exist yet. */
static bool is_to_be(const struct planner *planner, int32_t vpid)
{
	int i = find_node(planner, vpid);

	return i >= 0 && !is_there(planner, i);
}

/* Links parents and children, and finds the session that each process must be forked in: its own if it did
 * not make it; else the session in which children of its were born before that; else any. Children follow
 * their parents in the list, so that one pass from the end sees children first. */
static int survey_nodes(struct planner *planner)
{
	for (int i = 0; i < planner->n; i++) {
		const Pbeam__Process *process = planner->processes[i];
		int parent = process->vppid == process->vpid ? -1 : find_node(planner, process->vppid);

		if (i == 0 || process->remote_parent)
			parent = -1;
		if (parent >= i)
			return err_set(planner->err, -EINVAL,
				       "vpid %d comes before its parent %d in the image", process->vpid,
				       process->vppid);
		if (process->files_of)
			return err_set(
				planner->err, -ENOTSUP,
				"vpid %d shares its descriptor table with vpid %d, which is not supported",
				process->vpid, process->files_of);
		if (is_there(planner, i) &&
		    (is_to_be(planner, process->vppid) || is_to_be(planner, process->vsid) ||
		     is_to_be(planner, process->vpgid)))
			return err_set(
				planner->err, -EINVAL,
				"vpid %d exists before its parent %d or the leader of its session or group",
				process->vpid, process->vppid);
		planner->candidates[i].parent = parent < 0 ? PLAN_KEEPER : parent;
		planner->candidates[i].child = planner->candidates[i].sibling = -1;
	}
	for (int i = planner->n - 1; i >= 0; i--) {
		struct candidate *self = &planner->candidates[i];
		const Pbeam__Process *process = planner->processes[i];

		if (self->parent >= 0) {
			self->sibling = planner->candidates[self->parent].child;
			planner->candidates[self->parent].child = i;
		}
		self->need = is_session_leader(process) ? ANY_SESSION : process->vsid;
		for (int c = self->child; c >= 0; c = planner->candidates[c].sibling) {
			if (is_adopted(planner, i, c) || planner->candidates[c].need == process->vsid ||
			    planner->candidates[c].need == ANY_SESSION || !is_session_leader(process))
				continue;
			if (self->need == ANY_SESSION)
				self->need = planner->candidates[c].need;
		}
	}
	return 0;
}

static bool same_program(const Pbeam__Process *a, const Pbeam__Process *b)
{
	return a->exe && b->exe && a->exe->dev == b->exe->dev && a->exe->ino == b->exe->ino &&
	       a->exe->path.len == b->exe->path.len &&
	       bytes_equal(a->exe->path.data, b->exe->path.data, a->exe->path.len);
}

/* Selects children to be forked: those born in an earlier session of their parent, or those of the last one.
 */
enum birth { BIRTH_BEFORE, BIRTH_LAST };

static bool is_born(const struct planner *planner, int i, int c, enum birth birth, int32_t born)
{
	const struct candidate *child = &planner->candidates[c];
	int32_t now = planner->processes[i]->vsid;

	if (birth == BIRTH_LAST)
		return !child->built && (child->need == ANY_SESSION || child->need == now);
	return child->need != ANY_SESSION && child->need != now && child->need == born &&
	       !is_adopted(planner, i, c);
}

static int build_process(struct planner *planner, int i, int from);

/* First come children that share no memory with it; then, round by round, those that share what it has by
 * then. */
static int build_children(struct planner *planner, int i, enum birth birth, int32_t born)
{
	const struct inherit *inherit = &planner->plan->inherit;
	struct candidate *self = &planner->candidates[i];
	int r = 0;

	for (int round = 0; round <= inherit->passing[i].nrounds; round++)
		for (int c = self->child; c >= 0 && r == 0; c = planner->candidates[c].sibling) {
			if (inherit->round[c] != round || !is_born(planner, i, c, birth, born))
				continue;
			if (round > self->round) {
				self->round = round;
				r = add_step(planner, PLAN_MEMORY, i, i, round);
			}
			if (r == 0)
				r = build_process(planner, c, i);
		}
	return r;
}

/* Forks process i from node `from`, then those descendants that can be made from there. The others are left
 * to adopt_node(). */
static int build_process(struct planner *planner, int i, int from)
{
	const Pbeam__Process *process = planner->processes[i];
	struct plan_node *node;
	int r = plan_fork(planner, i, from);

	node = &planner->plan->nodes[i];
	planner->candidates[i].built = true;
	if (r == 0 && !is_there(planner, i) && !plan_is_empty(process) &&
	    (node->exe < 0 || !same_program(process, planner->processes[node->exe]))) {
		node->exe = i;
		r = add_step(planner, PLAN_EXEC, i, i, 0);
	}
	if (r == 0 && !is_there(planner, i) && is_session_leader(process)) {
		r = build_children(planner, i, BIRTH_BEFORE, node->session);
		if (r == 0)
			r = set_session(planner, i);
	}
	return r < 0 ? r : build_children(planner, i, BIRTH_LAST, 0);
}

/* Finds shared memory: a child can share memory only with a parent that has the same program. */
static int survey_memory(struct planner *planner)
{
	size_t n = (size_t)planner->n;
	auto_free int *from = calloc(n + 1, sizeof(*from));
	int r = from ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && from; i++) {
		const Pbeam__Process *process = planner->processes[i];
		int parent = planner->candidates[i].parent;

		from[i] = -1;
		if (is_there(planner, (int)i) || is_there(planner, parent))
			continue;
		if (parent >= 0 && !plan_is_empty(process) && !plan_is_empty(planner->processes[parent]) &&
		    same_program(process, planner->processes[parent]))
			from[i] = parent;
	}
	if (r == 0)
		r = inherit_survey(&planner->plan->inherit, planner->processes, from, n);
	return r < 0 ? err_code(planner->err, r, "plan of the processes") : 0;
}

/* A living node of session `session` at or below `above`, or NO_NODE. */
static int find_session_member(const struct planner *planner, int32_t session, int above)
{
	const struct plan *plan = planner->plan;

	for (int i = 0; i < plan->nnodes; i++) {
		bool alive = i < planner->n ? planner->candidates[i].built : true;

		if (alive && plan->nodes[i].session == session &&
		    (above == PLAN_KEEPER || is_ancestor_or_self(planner, above, i)))
			return i;
	}
	return NO_NODE;
}

static int depth_of(const struct planner *planner, int i)
{
	int depth = 0;

	for (; i != PLAN_KEEPER; i = planner->candidates[i].parent)
		depth++;
	return depth;
}

/* Makes a helper that leads a session whose leader is gone. It is made below the deepest process that adopts
 * a member of the session, because all helpers must be below the processes that adopt. Returns the node, or
 * NO_NODE when it is not possible (yet). */
static int revive_session(struct planner *planner, int32_t session, int parent)
{
	int deepest = parent, node, r;

	if (find_node(planner, session) >= 0 || find_session_member(planner, session, PLAN_KEEPER) != NO_NODE)
		return NO_NODE;
	for (int i = 0; i < planner->n; i++)
		if (!planner->candidates[i].built && planner->candidates[i].need == session &&
		    planner->candidates[i].parent != PLAN_KEEPER &&
		    is_adopted(planner, planner->candidates[i].parent, i) &&
		    depth_of(planner, planner->candidates[i].parent) > depth_of(planner, deepest))
			deepest = planner->candidates[i].parent;
	if (deepest >= 0 && !planner->candidates[deepest].built)
		return NO_NODE;
	node = add_helper(planner, session);
	r = node < 0 ? node : plan_fork(planner, node, deepest);
	if (r == 0)
		r = set_session(planner, node);
	return r < 0 ? r : node;
}

/* Makes orphan i, a child of `parent`, by way of a helper in its session. Returns 0 when made, 1 when it is
 * not possible yet. */
static int adopt_node(struct planner *planner, int i, int parent)
{
	int32_t need = planner->candidates[i].need;
	int member, helper, r;

	if (parent == PLAN_KEEPER && (need == ANY_SESSION || need == planner->plan->keeper_session))
		return build_process(planner, i, PLAN_KEEPER);
	member = find_session_member(planner, need, parent);
	if (member == NO_NODE) {
		member = revive_session(planner, need, parent);
		if (member == NO_NODE ||
		    (parent != PLAN_KEEPER && !is_ancestor_or_self(planner, parent, member)))
			return 1;
		if (member < 0)
			return member;
	}
	helper = add_helper(planner, 0);
	r = helper < 0 ? helper : plan_fork(planner, helper, member);
	if (r == 0)
		r = build_process(planner, i, helper);
	if (r == 0 && parent != PLAN_KEEPER)
		r = add_step(planner, PLAN_SUBREAPER, parent, parent, 1);
	if (r == 0)
		r = end_helper(planner, helper);
	if (r == 0 && parent != PLAN_KEEPER)
		r = add_step(planner, PLAN_SUBREAPER, parent, parent, 0);
	return r;
}

/* The session and group of these nodes are known, whichever way they were made. */
static int build_there(struct planner *planner)
{
	for (int i = 1; i < planner->n; i++) {
		int parent = planner->candidates[i].parent, r;

		if (!is_there(planner, i) || planner->candidates[i].built)
			continue;
		r = build_process(planner, i, parent);
		if (r < 0)
			return r;
	}
	return 0;
}

static int build_all(struct planner *planner)
{
	const struct plan_above *above = planner->plan->above;
	int r, left, before = planner->n + 1;

	if (above && planner->candidates[0].need != ANY_SESSION &&
	    planner->candidates[0].need != above->session)
		return err_set(planner->err, -EXDEV, "vpid %d was born in session %d, its parent is in %d",
			       planner->processes[0]->vpid, planner->candidates[0].need, above->session);
	planner->plan->keeper_session = above ? above->session : planner->candidates[0].need;
	r = build_process(planner, 0, PLAN_KEEPER);
	if (r == 0)
		r = build_there(planner);
	for (;;) {
		left = 0;
		for (int i = 1; i < planner->n && r >= 0; i++) {
			int parent = planner->candidates[i].parent;

			if (planner->candidates[i].built ||
			    (parent >= 0 && !planner->candidates[parent].built)) {
				left += !planner->candidates[i].built;
				continue;
			}
			r = adopt_node(planner, i, parent);
			left += r == 1;
		}
		if (r < 0)
			return r;
		if (left == 0)
			return 0;
		if (left == before)
			break;
		before = left;
	}
	for (int i = 0; i < planner->n; i++)
		if (!planner->candidates[i].built)
			return err_set(planner->err, -EINVAL,
				       "vpid %d: no order of forks gives it parent %d and session %d",
				       planner->processes[i]->vpid, planner->processes[i]->vppid,
				       planner->processes[i]->vsid);
	return 0;
}

/* True if a process other than the leader is in group `group`; with `now`, already. */
static bool group_has_others(const struct planner *planner, int32_t group, bool now)
{
	for (int i = 0; i < planner->n; i++)
		if (planner->processes[i]->vpgid == group && planner->processes[i]->vpid != group &&
		    (!now || is_there(planner, i)))
			return true;
	return false;
}

static bool group_exists(const struct planner *planner, int32_t group)
{
	const struct plan_above *above = planner->plan->above;

	for (size_t i = 0; above && i < above->ngroups; i++)
		if (above->groups[i] == group)
			return true;
	for (int i = 0; i < planner->plan->nnodes; i++)
		if (planner->plan->nodes[i].group == group && planner->plan->nodes[i].session != NO_NODE)
			return true;
	return false;
}

/* Handles groups named after a process of the image: that process makes its group. If it has left the group
 * since, a helper keeps the group for the members that follow. */
static int make_groups(struct planner *planner)
{
	int r = 0;

	for (int i = 0; i < planner->n && r == 0; i++) {
		const Pbeam__Process *process = planner->processes[i];
		bool own = process->vpgid == process->vpid;
		int helper;

		if (is_session_leader(process) || (!own && !group_has_others(planner, process->vpid, false)))
			continue;
		if (is_there(planner, i) && (own || group_has_others(planner, process->vpid, true)))
			continue;
		r = set_group(planner, i, process->vpid);
		if (r < 0 || own)
			continue;
		helper = add_helper(planner, 0);
		r = helper < 0 ? helper : plan_fork(planner, helper, i);
	}
	return r;
}

static int join_groups(struct planner *planner)
{
	int r = make_groups(planner);

	for (int i = 0; i < planner->n && r == 0; i++) {
		const Pbeam__Process *process = planner->processes[i];

		if (planner->plan->nodes[i].group == process->vpgid)
			continue;
		if (is_session_leader(process))
			return err_set(planner->err, -EINVAL, "vpid %d leads a session but is in group %d",
				       process->vpid, process->vpgid);
		if (process->vpgid == process->vsid && !group_exists(planner, process->vpgid))
			return err_set(planner->err, -EINVAL,
				       "group %d has no members left, and only the leader of session %d "
				       "could have made it",
				       process->vpgid, process->vsid);
		if (!group_exists(planner, process->vpgid)) {
			int helper = add_helper(planner, process->vpgid);

			r = helper < 0 ? helper : plan_fork(planner, helper, i);
			if (r == 0)
				r = set_group(planner, helper, process->vpgid);
		}
		if (r == 0)
			r = set_group(planner, i, process->vpgid);
	}
	return r;
}

/* Helpers end before zombies do, because their parents, which may become zombies, wait for them. The youngest
 * ends first. */
static int end_helpers(struct planner *planner)
{
	int r = 0;

	for (int i = planner->plan->nnodes - 1; i >= planner->n && r == 0; i--)
		if (planner->plan->nodes[i].session != NO_NODE)
			r = end_helper(planner, i);
	for (int i = planner->n - 1; i >= 0 && r == 0; i--)
		if (planner->processes[i]->state == PBEAM__PROCESS__STATE__ZOMBIE) {
			if (planner->candidates[i].child >= 0)
				return err_set(planner->err, -EINVAL, "vpid %d is a zombie but has children",
					       planner->processes[i]->vpid);
			r = add_step(planner, PLAN_EXIT, i, i, 0);
		}
	return r;
}

static int prepare_plan(struct planner *planner)
{
	struct plan *plan = planner->plan;

	for (int i = 0; i < planner->n; i++) {
		const Pbeam__Process *process = planner->processes[i];

		if (process->vpid <= 0 || process->vsid < 0 || process->vpgid < 0)
			return err_set(planner->err, -EINVAL,
				       "process number %d of the image has ids %d %d %d", i, process->vpid,
				       process->vsid, process->vpgid);
		planner->index[i] = (struct index_entry){process->vpid, i};
		plan->nodes[i] = (struct plan_node){.process = process,
						    .vpid = process->vpid,
						    .parent = NO_NODE,
						    .exit_signal = process->exit_signal,
						    .exe = -1};
	}
	plan->nnodes = planner->n;
	bytes_sort(planner->index, (size_t)planner->n, sizeof(*planner->index), compare_entries);
	for (int i = 1; i < planner->n; i++)
		if (planner->index[i].vpid == planner->index[i - 1].vpid)
			return err_set(planner->err, -EINVAL, "vpid %d occurs twice in the image",
				       planner->index[i].vpid);
	return 0;
}

int plan_make(struct plan *plan, Pbeam__Process *const *processes, size_t n, const bool *there,
	      const struct plan_above *above, struct err *err)
{
	auto_free struct candidate *candidates = NULL;
	auto_free struct index_entry *index = NULL;
	struct planner planner = {
		.plan = plan, .processes = processes, .n = (int)n, .there = there, .err = err};
	int r;

	memset(plan, 0, sizeof(*plan));
	plan->above = above;
	if (n == 0 || n > MAX_PROCESSES)
		return err_set(err, -EINVAL, "the image has %zu processes", n);
	plan->node_room = (int)n + 16;
	plan->nodes = calloc((size_t)plan->node_room, sizeof(*plan->nodes));
	planner.candidates = candidates = calloc(n, sizeof(*candidates));
	planner.index = index = calloc(n, sizeof(*index));
	if (!plan->nodes || !candidates || !index)
		return err_code(err, -ENOMEM, "plan of the processes");
	r = prepare_plan(&planner);
	if (r == 0)
		r = survey_nodes(&planner);
	if (r == 0)
		r = survey_memory(&planner);
	if (r == 0)
		r = build_all(&planner);
	if (r == 0)
		r = join_groups(&planner);
	if (r == 0)
		r = end_helpers(&planner);
	return r;
}

void plan_free(struct plan *plan)
{
	free(plan->nodes);
	free(plan->steps);
	inherit_free(&plan->inherit);
	memset(plan, 0, sizeof(*plan));
}
