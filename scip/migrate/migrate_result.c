/* The result of a migration. */
#include <stdlib.h>

#include "scip/migrate/migrate.h"

void migrate_result_free(struct migrate_result *result)
{
	for (size_t i = 0; i < result->nobstacles; i++)
		free(result->obstacles[i]);
	free(result->obstacles);
	result->obstacles = NULL;
	result->nobstacles = 0;
}
