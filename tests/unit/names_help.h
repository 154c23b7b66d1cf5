/* A new name table for each test. */
#ifndef TESTS_UNIT_NAMES_HELP_H
#define TESTS_UNIT_NAMES_HELP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "namespace/table.h"
#include "tests/unit/unit.h"

static char runtime[64], table_path[96];

/* *state is the table. */
static int set_up(void **state)
{
	struct names *names;
	struct err err = ERR_INIT;

	alarm(60);
	snprintf(runtime, sizeof(runtime), "/tmp/pbeam-names-test-XXXXXX");
	assert_non_null(mkdtemp(runtime));
	setenv("XDG_RUNTIME_DIR", runtime, 1);
	snprintf(table_path, sizeof(table_path), "%s/pbeam/" TABLE_FILE ".%u", runtime, TABLE_VERSION);
	assert_int_equal(names_open(&names, &err), 0);
	*state = names;
	return 0;
}

/* Fails if there are other files than the table. */
static int tear_down(void **state)
{
	char path[96];

	names_close(*state);
	unlink(table_path);
	snprintf(path, sizeof(path), "%s/pbeam/record", runtime);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/pbeam", runtime);
	rmdir(path);
	return rmdir(runtime);
}

#endif
