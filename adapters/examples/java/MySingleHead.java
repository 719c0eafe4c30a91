import java.util.Arrays;

/** Self-attention of one sequence with one head, which trains by plain gradient descent. */
final class MySingleHead {
    /** A matrix each for queries, keys and values. */
    record Three(double[][] q, double[][] k, double[][] v) {}

    private final boolean causal;
    private Three weights;
    private double[][] x;
    private Three projected;
    private double[][] attention;
    private Three gradients;

    /** Each weight is (d_model, d_model); with causal, token i sees the tokens 0 … i. */
    MySingleHead(double[][] wQ, double[][] wK, double[][] wV, boolean causal) {
        this.weights = new Three(wQ, wK, wV);
        this.causal = causal;
    }

    /** The attention of x (seq, d_model) to itself. */
    MyAttention.Attended forward(double[][] x) {
        this.x = x;
        projected = new Three(
                Matrices.product(x, weights.q), Matrices.product(x, weights.k), Matrices.product(x, weights.v));
        MyAttention.Attended attended = MyAttention.attend(projected.q, projected.k, projected.v, mask());
        attention = attended.weights();
        return attended;
    }

    /** The gradient of x in the last forward pass, given that of its output; keeps the gradients of the weights. */
    double[][] backward(double[][] outputGradient) {
        MyAttention.Gradients inner = MyAttention.backward(
                projected.q, projected.k, projected.v, mask(), attention, outputGradient);
        double[][] xT = Matrices.transposed(x);
        gradients = new Three(
                Matrices.product(xT, inner.query()),
                Matrices.product(xT, inner.key()),
                Matrices.product(xT, inner.value()));
        double[][] throughQuery = Matrices.product(inner.query(), Matrices.transposed(weights.q));
        double[][] throughKey = Matrices.product(inner.key(), Matrices.transposed(weights.k));
        double[][] throughValue = Matrices.product(inner.value(), Matrices.transposed(weights.v));
        return Matrices.sum(Matrices.sum(throughQuery, 1, throughKey), 1, throughValue);
    }

    /** Moves each weight against its gradient in the last backward pass: W − lr·dW. */
    void step(double learningRate) {
        weights = new Three(
                Matrices.sum(weights.q, -learningRate, gradients.q),
                Matrices.sum(weights.k, -learningRate, gradients.k),
                Matrices.sum(weights.v, -learningRate, gradients.v));
    }

    /** W_Q, W_K and W_V. */
    Three weights() {
        return weights;
    }

    /** Query, key and value of the last forward pass. */
    Three projected() {
        return projected;
    }

    /** The gradients of the weights in the last backward pass. */
    Three gradients() {
        return gradients;
    }

    private boolean[][] mask() {
        if (!causal) {
            return null;
        }
        boolean[][] mask = new boolean[x.length][x.length];
        for (int i = 0; i < x.length; i++) {
            Arrays.fill(mask[i], 0, i + 1, true);
        }
        return mask;
    }
}
