/*
 * Installs the program's own seccomp filters, in their order, for all threads at once, after all other work
 * from inside. The dump has checked that the filters allow the one call that still follows, unmapping the
 * injected code. The filters are recorded again, because the kernel does not reveal them to the next
 * checkpoint.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include "namespace/record.h"
#include "scip/fill/fill_batch.h"

static int install_filter(struct fill *fill, const ProtobufCBinaryData *filter)
{
	struct {
		uint64_t len, filter;
	} program = {.len = filter->len / sizeof(struct sock_filter)};
	uint64_t where;
	int r = fill_reserve(fill, 1, filter->len + sizeof(program) + 64);

	if (r < 0)
		return r;
	r = fill_data(fill, filter->data, filter->len, &program.filter);
	if (r < 0)
		return r;
	r = fill_data(fill, &program, sizeof(program), &where);
	if (r < 0)
		return r;
	return fill_do(fill, SYS_seccomp,
		       remote_args(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, where));
}

int fill_filters(struct fill *fill)
{
	const Pbeam__Process *saved = fill->saved;
	struct rpid keeper = fill->process->keeper;
	struct vpid vpid = {saved->vpid};
	int r = 0;

	if (saved->n_seccomp_filters == 0)
		return 0;
	record_filter_forget(keeper, vpid);
	fill->process->filters = true;
	for (size_t i = 0; i < saved->n_seccomp_filters && r == 0; i++) {
		r = install_filter(fill, &saved->seccomp_filters[i]);
		if (r == 0)
			r = record_filter_add(keeper, vpid, saved->seccomp_filters[i].data,
					      saved->seccomp_filters[i].len);
	}
	if (r == 0)
		r = fill_flush(fill);
	return r < 0 ? err_wrap(fill->err, r, "seccomp filters of the program") : 0;
}
