#ifndef PBEAMD_CONFIG_H
#define PBEAMD_CONFIG_H

#include "pbeamd/transport/cluster.h"

/* Sets one option by its name on the command line. -EINVAL with the sentence. */
must_check int config_set(struct cluster_options *options, const char *name, const char *value,
			  struct err *err);
/* Reads a file of `name = value` lines. Options that are set already stay. */
must_check int config_read(struct cluster_options *options, const char *path, struct err *err);
/* *cluster: the options are those of a host of a cluster. Then they are checked and completed. */
must_check int config_check(struct cluster_options *options, bool *cluster, struct err *err);
/* A daemon that is started on demand uses the options of the daemon before. A daemon that the user starts
 * without a cluster forgets them. */
must_check int config_remember(const struct cluster_options *options, struct err *err);
void config_forget(void);
must_check int config_recall(struct cluster_options *options, struct err *err);

#endif
