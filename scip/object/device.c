/* Character devices without state: /dev/null, zero, full, random, urandom. */
#include <errno.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

static const struct {
	unsigned minor;
	const char *path;
} devices[] = {{3, "/dev/null"}, {5, "/dev/zero"}, {7, "/dev/full"}, {8, "/dev/random"}, {9, "/dev/urandom"}};

static const char *usual_path(uint64_t rdev)
{
	for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
		if (rdev == makedev(1, devices[i].minor))
			return devices[i].path;
	return NULL;
}

static bool device_match(struct object_dump *dump, const struct object_source *source)
{
	return S_ISCHR(source->st.st_mode) && usual_path(source->st.st_rdev) != NULL;
}

static int device_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		       struct err *err)
{
	Pbeam__Device *device = object_message(Pbeam__Device, pbeam__device__init);
	off_t offset;

	out->device = device;
	if (!device)
		return object_no_memory(err);
	device->rdev = source->st.st_rdev;
	offset = lseek(source->local, 0, SEEK_CUR);
	device->offset = offset < 0 ? 0 : (uint64_t)offset;
	return object_set_bytes(&device->path, source->link, strlen(source->link), err);
}

/* Its name may be that of a container or chroot: any file that is the same device is accepted. */
static int device_open(const Pbeam__Object *object)
{
	auto_free char *path = object_text(&object->device->path);
	const char *names[2] = {path, usual_path(object->device->rdev)};

	for (int i = 0; i < 2; i++) {
		struct stat st;
		int fd;

		if (!names[i])
			continue;
		fd = open(names[i], (int)(object->flags & (O_ACCMODE | O_NONBLOCK | O_APPEND)) | O_CLOEXEC);
		if (fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) &&
		    st.st_rdev == object->device->rdev)
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -ENODEV;
}

static int device_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	auto_close int fd = -1;

	if (!usual_path(object->device->rdev))
		return err_set(err, -EBADMSG, "the image names a device that cannot be restored");
	fd = device_open(object);
	return fd < 0 ? err_set(err, fd, "device %s is missing", usual_path(object->device->rdev)) : 0;
}

static int device_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			  struct err *err)
{
	*fd = device_open(object);
	if (*fd < 0)
		return err_set(err, *fd, "device %s is missing", usual_path(object->device->rdev));
	if (object->device->offset)
		(void)!lseek(*fd, (off_t)object->device->offset, SEEK_SET);
	return 0;
}

const struct object_ops object_device = {
	.name = "device",
	.kind = PBEAM__OBJECT__KIND_DEVICE,
	.phase = 1,
	.match = device_match,
	.dump = device_dump,
	.check = device_check,
	.restore = device_restore,
	.shift = object_shift_none,
};
