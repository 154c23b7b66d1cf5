/*
 * PAGEMAP_SCAN (Linux 6.7, the guard category 6.15), which the headers of older systems lack, and the words
 * of /proc/PID/pagemap. Documentation/admin-guide/mm/pagemap.rst
 */
#ifndef SCIP_DUMP_PAGEMAP_SCAN_H
#define SCIP_DUMP_PAGEMAP_SCAN_H

#include <stdint.h>
#include <sys/ioctl.h>

struct scan_region {
	uint64_t start, end, categories;
};
struct scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_CALL      _IOWR('f', 16, struct scan_arg)
#define SCAN_WP	       (UINT64_C(1) << 0) /* flag: write-protects the pages that are reported */
#define SCAN_TRACKED   (UINT64_C(1) << 0) /* write-protection by userfaultfd is on */
#define SCAN_WRITTEN   (UINT64_C(1) << 1)
#define SCAN_FILE      (UINT64_C(1) << 2)
#define SCAN_PRESENT   (UINT64_C(1) << 3)
#define SCAN_SWAPPED   (UINT64_C(1) << 4)
#define SCAN_PFNZERO   (UINT64_C(1) << 5)
#define SCAN_GUARD     (UINT64_C(1) << 8)

#define WORD_EXCLUSIVE (UINT64_C(1) << 56)
#define WORD_GUARD     (UINT64_C(1) << 58)
#define WORD_FILE      (UINT64_C(1) << 61)
#define WORD_SWAPPED   (UINT64_C(1) << 62)
#define WORD_PRESENT   (UINT64_C(1) << 63)

#endif
