/*
 * Pseudo-terminals of a job whose numbers diverged: pairs {virtual, real} in RUNTIME/record/KEEPER.pts. They
 * are looked up only for paths below /dev/pts, so a file is fast enough.
 *
 * The kernel does not report when a pair of terminals is closed; a pair of numbers stays until one of the two
 * is bound again. A terminal that gets the real number again gets the virtual number as well, which is as
 * good as any.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/record.h"
#include "namespace/record_file.h"

#define PAIRS_MAX 65536u
/* Virtual numbers that we choose: above the default of kernel.pty.max, below the highest minor number. */
#define OWN_FIRST 100000
#define OWN_LAST  999999
#define NOBODY	  INT32_MAX

struct pair {
	int32_t virtual, real;
};

/* The caller frees *pairs, which is NULL if there are none. */
static int pts_load_pairs(struct rpid keeper, struct pair **pairs, size_t *n)
{
	char file[PATH_MAX];
	size_t len = 0;
	int r = record_path(file, keeper, "pts");

	*pairs = NULL;
	*n = 0;
	if (r == 0)
		r = io_slurp(AT_FDCWD, file, PAIRS_MAX * sizeof(struct pair), (char **)pairs, &len);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	*n = len / sizeof(struct pair);
	return 0;
}

/* Replaces the file as a whole: a reader takes no lock. */
static int pts_store_pairs(struct rpid keeper, const struct pair *pairs, size_t n)
{
	char file[PATH_MAX], temporary[PATH_MAX];
	int r = record_path(file, keeper, "pts");

	if (r == 0)
		r = record_path(temporary, keeper, "pts.new");
	if (r < 0)
		return r;
	auto_close int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	r = io_write_full(fd, pairs, n * sizeof(*pairs)) < 0 ? -EIO : 0;
	if (r == 0 && rename(temporary, file) < 0)
		r = -errno;
	if (r < 0)
		unlink(temporary);
	return r;
}

static const struct pair *pts_find_pair(const struct pair *pairs, size_t n, int32_t number, bool virtual)
{
	for (size_t i = 0; i < n; i++)
		if ((virtual ? pairs[i].virtual : pairs[i].real) == number)
			return &pairs[i];
	return NULL;
}

/* Under the lock. */
static int bind_locked(struct rpid keeper, int32_t virtual, int32_t real)
{
	auto_free struct pair *pairs = NULL;
	auto_free struct pair *now = NULL;
	size_t n, kept = 0;
	int r = pts_load_pairs(keeper, &pairs, &n);

	if (r < 0)
		return r;
	if (n == 0 && virtual == real)
		return 0;
	now = malloc((n + 1) * sizeof(*now));
	if (!now)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (pairs[i].virtual != virtual && pairs[i].real != real)
			now[kept++] = pairs[i];
	if (virtual != real)
		now[kept++] = (struct pair){virtual, real};
	return kept > PAIRS_MAX ? -ENOSPC : pts_store_pairs(keeper, now, kept);
}

int record_pts_bind(struct names *names, struct rpid keeper, int32_t virtual, int32_t real)
{
	int r = virtual < 0 || real < 0 ? -EINVAL : names_lock(names);

	if (r < 0)
		return r;
	r = bind_locked(keeper, virtual, real);
	names_unlock(names);
	return r;
}

int32_t record_pts_real(struct rpid keeper, int32_t virtual)
{
	auto_free struct pair *pairs = NULL;
	const struct pair *pair;
	size_t n;

	if (pts_load_pairs(keeper, &pairs, &n) < 0)
		return virtual;
	pair = pts_find_pair(pairs, n, virtual, true);
	if (pair)
		return pair->real;
	return pts_find_pair(pairs, n, virtual, false) ? NOBODY : virtual;
}

/* Returns the number that a terminal has, or can have without a record; -1 if it needs one that we choose,
 * *own. */
static int32_t pts_look_up(struct rpid keeper, int32_t real, int32_t *own)
{
	auto_free struct pair *pairs = NULL;
	const struct pair *pair;
	size_t n;

	if (pts_load_pairs(keeper, &pairs, &n) < 0)
		return real;
	pair = pts_find_pair(pairs, n, real, false);
	if (pair)
		return pair->virtual;
	if (!pts_find_pair(pairs, n, real, true))
		return real;
	for (*own = OWN_FIRST; pts_find_pair(pairs, n, *own, true) && *own < OWN_LAST;)
		++*own;
	return -1;
}

int32_t record_pts_virtual(struct names *names, struct rpid keeper, int32_t real)
{
	int32_t own, virtual = pts_look_up(keeper, real, &own);

	if (virtual >= 0 || names_lock(names) < 0)
		return virtual >= 0 ? virtual : real;
	virtual = pts_look_up(keeper, real, &own);
	if (virtual < 0)
		virtual = bind_locked(keeper, own, real) == 0 ? own : real;
	names_unlock(names);
	return virtual;
}
