#ifndef PBEAMD_CONFIG_H
#define PBEAMD_CONFIG_H

#include "pbeamd/transport/cluster.h"

/* Sets one option by its name on the command line. -EINVAL with the sentence. */
must_check int config_set(struct cluster_options *options, const char *name, const char *value,
			  struct err *err);
/* Reads a file of `name = value` lines; what is set already stays. */
must_check int config_read(struct cluster_options *options, const char *path, struct err *err);
/* True if this is to be a host of a cluster; then it is checked and made complete. */
must_check int config_check(struct cluster_options *options, bool *cluster, struct err *err);
/* A daemon that is started on demand goes on with the configuration of the one that ended last; one that was
 * started without a cluster forgets it. */
must_check int config_remember(const struct cluster_options *options, struct err *err);
void config_forget(void);
must_check int config_recall(struct cluster_options *options, struct err *err);

#endif
