// Times Open MPI's reduce-scatter and all-gather of a float32 buffer.
//
//   mpicc -O3 mpi_reduce_scatter.c -o mpi_reduce_scatter
//   mpirun -n 2 ./mpi_reduce_scatter 67108864 21    bytes of the whole buffer, timed runs
//
// Prints two medians in seconds: reduce-scatter, all-gather.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ByValue(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double Median(double* seconds, int runs) {
  qsort(seconds, runs, sizeof(*seconds), ByValue);
  return seconds[runs / 2];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long bytes = argc > 1 ? atol(argv[1]) : 1 << 24;
  const int runs = argc > 2 ? atoi(argv[2]) : 21;
  const int shard = (int)(bytes / (long)sizeof(float) / ranks);
  float* whole = malloc((size_t)shard * ranks * sizeof(float));
  float* part = malloc((size_t)shard * sizeof(float));
  double* reduce = malloc(runs * sizeof(double));
  double* gather = malloc(runs * sizeof(double));
  for (int i = 0; i < shard * ranks; ++i) whole[i] = (float)(i % 1000) + (float)rank;
  for (int i = 0; i < shard; ++i) part[i] = 0;
  // The first two runs touch what the library allocates.
  for (int run = -2; run < runs; ++run) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Reduce_scatter_block(whole, part, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (run >= 0) reduce[run] = MPI_Wtime() - start;
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, whole, shard, MPI_FLOAT, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (run >= 0) gather[run] = MPI_Wtime() - start;
  }
  if (rank == 0) printf("%.9f %.9f\n", Median(reduce, runs), Median(gather, runs));
  MPI_Finalize();
  return 0;
}
