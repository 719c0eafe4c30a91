import java.util.Arrays;

/** The little linear algebra that attention needs, on matrices as Java has them: rows of doubles. */
final class Matrices {
    private Matrices() {}

    /** a·b, where a is (n, m) and b is (m, p). */
    static double[][] product(double[][] a, double[][] b) {
        double[][] result = new double[a.length][b[0].length];
        for (int i = 0; i < a.length; i++) {
            for (int k = 0; k < b.length; k++) {
                for (int j = 0; j < b[0].length; j++) {
                    result[i][j] += a[i][k] * b[k][j];
                }
            }
        }
        return result;
    }

    /** aᵀ. */
    static double[][] transposed(double[][] a) {
        double[][] result = new double[a[0].length][a.length];
        for (int i = 0; i < a.length; i++) {
            for (int j = 0; j < a[0].length; j++) {
                result[j][i] = a[i][j];
            }
        }
        return result;
    }

    /** a + factor·b. */
    static double[][] sum(double[][] a, double factor, double[][] b) {
        double[][] result = new double[a.length][a[0].length];
        for (int i = 0; i < a.length; i++) {
            for (int j = 0; j < a[0].length; j++) {
                result[i][j] = a[i][j] + factor * b[i][j];
            }
        }
        return result;
    }

    /** factor·a. */
    static double[][] scaled(double factor, double[][] a) {
        double[][] result = new double[a.length][a[0].length];
        for (int i = 0; i < a.length; i++) {
            for (int j = 0; j < a[0].length; j++) {
                result[i][j] = factor * a[i][j];
            }
        }
        return result;
    }

    /** x·W + b, where W is (in, out); a bias that is null adds nothing. */
    static double[][] affine(double[][] x, double[][] weight, double[] bias) {
        double[][] result = product(x, weight);
        if (bias != null) {
            for (double[] row : result) {
                for (int j = 0; j < row.length; j++) {
                    row[j] += bias[j];
                }
            }
        }
        return result;
    }

    /** The columns first … first + count − 1. */
    static double[][] columns(double[][] a, int first, int count) {
        double[][] result = new double[a.length][];
        for (int i = 0; i < a.length; i++) {
            result[i] = Arrays.copyOfRange(a[i], first, first + count);
        }
        return result;
    }
}
