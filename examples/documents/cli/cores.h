/*
 * cores.h - how many cores this process may compute on.
 *
 * Three limits count, and the least of them is meant: the cores that there are, those that the process may run on
 * (taskset, a container's cpuset, a batch system), and the time that its control group gets (a container's --cpus).
 */
#ifndef EX_CORES_H
#define EX_CORES_H

typedef struct ex_cores {
    int online;  /* that the machine has */
    int allowed; /* of these, that the process may run on */
    int quota;   /* that its control group's time is worth, rounded up; 0: no limit */
    int usable;  /* the least of these, at least 1 */
} ex_cores;

ex_cores ex_cores_read(void);

/*
 * Cores of the control groups' quota: of the process's own group and of those above it, as far as they can be seen.
 * @param root  of the files: "" is the system's own (ROOT/proc/self/cgroup, ROOT/proc/self/mountinfo, and the groups where
 *              the latter says that they are mounted)
 * @return the least, rounded up; 0: no limit
 */
int ex_cores_quota(const char *root);

#endif
