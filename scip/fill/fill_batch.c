/* Batches of the husk's system calls: fill_batch.h. */
#include "scip/fill/fill_batch.h"

#include <errno.h>

enum { CALL_BYTES = sizeof(struct inject_call) };

static int begin_batch(struct fill *fill)
{
	int r = batch_begin(fill->process, &fill->batch, fill->err);

	fill->ncalls = 0;
	fill->room = fill->space;
	return r;
}

int fill_flush(struct fill *fill)
{
	int r = 0;

	if (!fill->batch)
		return 0;
	if (fill->ncalls)
		r = batch_run(fill->batch, fill->runner, fill->err);
	batch_end(fill->batch);
	fill->batch = NULL;
	return r;
}

int fill_reserve(struct fill *fill, int calls, size_t bytes)
{
	size_t need = (size_t)calls * CALL_BYTES + bytes + 64;
	int r;

	if (fill->batch && fill->room >= need)
		return 0;
	r = fill_flush(fill);
	if (r == 0)
		r = begin_batch(fill);
	if (r == 0 && fill->room < need)
		r = err_set(fill->err, -ENOSPC, "%zu bytes do not fit in one batch of calls", need);
	return r;
}

int fill_call(struct fill *fill, uint32_t flags, int64_t nr, const uint64_t args[6])
{
	int r = fill_reserve(fill, 1, 0);

	if (r < 0)
		return r;
	r = batch_add(fill->batch, flags, nr, args);
	if (r < 0)
		return err_code(fill->err, r, "batch of calls");
	fill->room -= CALL_BYTES;
	fill->ncalls++;
	return r;
}

int fill_do(struct fill *fill, int64_t nr, const uint64_t args[6])
{
	int r = fill_call(fill, 0, nr, args);

	return r < 0 ? r : 0;
}

int fill_try(struct fill *fill, int64_t nr, const uint64_t args[6])
{
	int r = fill_call(fill, INJECT_CALL_ANY, nr, args);

	return r < 0 ? r : 0;
}

void fill_from(struct fill *fill, int number, int from, unsigned arg)
{
	struct inject_call *call = batch_call(fill->batch, number);

	call->flags |= INJECT_CALL_FROM;
	call->from_call = (uint16_t)from;
	call->from_arg = (uint16_t)arg;
}

void fill_expect(struct fill *fill, int number, int64_t value)
{
	struct inject_call *call = batch_call(fill->batch, number);

	call->flags |= INJECT_CALL_EXACT;
	call->expect = value;
}

int fill_data(struct fill *fill, const void *data, size_t len, uint64_t *where)
{
	struct taddr at;
	int r = fill_reserve(fill, 0, len + 16);

	if (r == 0)
		r = batch_data(fill->batch, data, len, &at);
	if (r < 0)
		return err_code(fill->err, r, "data of a batch of calls");
	fill->room -= len + 16 < fill->room ? len + 16 : fill->room;
	*where = at.a;
	return 0;
}
